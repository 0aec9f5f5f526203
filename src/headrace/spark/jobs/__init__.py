"""Ready-made pipelines: land, unite, replay, snapshot a bucket, audit and collect claims.

Each job can be ended at any moment and started again: landing goes on from its checkpoint, a replay where its records
end, a snapshot and an audit replace the last one when they are whole, a collection finds what is left. Each tells its
progress to whoever asks and returns a summary. `headrace pipeline ...` is the same from a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.spark.jobs.landing import LAYOUTS, default_checkpoint, land, start_landing
from headrace.spark.jobs.ranges import Landed, landed_ranges
from headrace.spark.jobs.replaying import replay
from headrace.spark.jobs.snapshots import snapshot_bucket
from headrace.spark.jobs.summaries import Progress, Summary
from headrace.spark.jobs.uniting import united

if TYPE_CHECKING:
    from headrace.spark.jobs.auditing import AuditSummary, claims_audit
    from headrace.spark.jobs.collecting import CollectSummary, claims_collect

__all__ = [
    "LAYOUTS",
    "AuditSummary",
    "CollectSummary",
    "Landed",
    "Progress",
    "Summary",
    "claims_audit",
    "claims_collect",
    "default_checkpoint",
    "land",
    "landed_ranges",
    "replay",
    "snapshot_bucket",
    "start_landing",
    "united",
]


def __getattr__(name: str) -> Any:
    # On first use: jobs on claims need the extra `headrace[claims]`, the others do not.
    if name in ("AuditSummary", "claims_audit"):
        from headrace.spark.jobs import auditing

        return getattr(auditing, name)
    if name in ("CollectSummary", "claims_collect"):
        from headrace.spark.jobs import collecting

        return getattr(collecting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
