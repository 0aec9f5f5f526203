"""Ready-made pipelines: land, union, replay, snapshot a bucket, audit and collect claims.

Each job can be stopped at any time and started again: landing continues from its checkpoint, a replay from its commit
log; a snapshot and an audit replace the previous result only when they are complete; a collection deletes what is left.
Each job reports its progress to a callback and returns a summary. `headrace pipeline ...` runs the same jobs from the
command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.deprecation import renamed_names
from headrace.spark.jobs.compact_table import CompactSummary, compact
from headrace.spark.jobs.job_result import Progress, Summary
from headrace.spark.jobs.kv_snapshot import snapshot_bucket
from headrace.spark.jobs.landing import LAYOUTS, default_checkpoint, land, start_landing
from headrace.spark.jobs.landing_log import Landed, landed_ranges
from headrace.spark.jobs.replay_table import replay
from headrace.spark.jobs.union_with_tail import read_with_tail

if TYPE_CHECKING:
    from headrace.spark.jobs.audit_claims import AuditSummary, claims_audit
    from headrace.spark.jobs.collect_claims import CollectSummary, claims_collect

__all__ = [
    "LAYOUTS",
    "AuditSummary",
    "CollectSummary",
    "CompactSummary",
    "Landed",
    "Progress",
    "Summary",
    "claims_audit",
    "claims_collect",
    "compact",
    "default_checkpoint",
    "land",
    "landed_ranges",
    "read_with_tail",
    "replay",
    "snapshot_bucket",
    "start_landing",
]


def _load_lazily(name: str) -> Any:
    # Imported on first use: jobs on claims need the extra `headrace[claims]`, the others do not.
    if name in ("AuditSummary", "claims_audit"):
        from headrace.spark.jobs import audit_claims

        return getattr(audit_claims, name)
    if name in ("CollectSummary", "claims_collect"):
        from headrace.spark.jobs import collect_claims

        return getattr(collect_claims, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    __getattr__ = _load_lazily
else:
    __getattr__ = renamed_names(__name__, {"united": "read_with_tail"}, _load_lazily)
