"""How streams are kept: a journal that is the truth, segments written behind it, checkpoints; see
docs/store.md.
"""

from headrace.store.disk import Clock, Disk, FileDisk
from headrace.store.facts import Facts
from headrace.store.filters import Filter
from headrace.store.log import SEQ_MAX, Log
from headrace.store.options import StoreOptions
from headrace.store.report import Damage, Report
from headrace.store.store import Store

__all__ = [
    "SEQ_MAX",
    "Clock",
    "Damage",
    "Disk",
    "Facts",
    "FileDisk",
    "Filter",
    "Log",
    "Report",
    "Store",
    "StoreOptions",
]
