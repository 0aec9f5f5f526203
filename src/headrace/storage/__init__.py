"""Stream storage: a journal (write-ahead log) as the source of truth, segments flushed in the background, checkpoints.

See docs/explanation/storage-format.md.
"""

from headrace.clock import Clock
from headrace.storage.damage_report import Damage, RecoveryReport
from headrace.storage.io.disk import Disk, FileDisk
from headrace.storage.log.filters import Filter
from headrace.storage.log.log import SEQ_MAX, StreamLog
from headrace.storage.maintenance.long_idle import count_uses, release_idle_resources
from headrace.storage.memory_frames import MemoryFrames
from headrace.storage.metadata_store import MetadataStore
from headrace.storage.options import StoreOptions
from headrace.storage.recovery.recovery import open_store
from headrace.storage.store import Store
from headrace.storage.store_observer import StoreObserver

__all__ = [
    "SEQ_MAX",
    "Clock",
    "Damage",
    "Disk",
    "FileDisk",
    "Filter",
    "MemoryFrames",
    "MetadataStore",
    "RecoveryReport",
    "Store",
    "StoreObserver",
    "StoreOptions",
    "StreamLog",
    "count_uses",
    "open_store",
    "release_idle_resources",
]
