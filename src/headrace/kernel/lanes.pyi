from headrace.kernel.lanes_pure import Lane as Lane
from headrace.kernel.lanes_pure import Outbox as Outbox
