from headrace.kernel.arrivals_pure import Pool as Pool
from headrace.kernel.arrivals_pure import Staged as Staged
from headrace.kernel.arrivals_pure import Window as Window
from headrace.kernel.arrivals_pure import nats_headers as nats_headers
