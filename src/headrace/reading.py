"""The old name of `headrace.reader`; importing it warns."""

from headrace.deprecation import warn_renamed
from headrace.reader import StreamScan as Reading
from headrace.reader import read, read_kv

__all__ = ["Reading", "read", "read_kv"]

warn_renamed(__name__, "headrace.reader", stacklevel=3)
