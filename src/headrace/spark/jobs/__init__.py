"""Ready-made pipelines: land, unite, replay, snapshot a bucket, audit and collect claims.

Each job can be ended at any moment and started again: landing goes on from its checkpoint, a replay where its records
end, a snapshot and an audit replace the last one when they are whole, a collection finds what is left. Each tells its
progress to whoever asks and returns a summary. `headrace pipeline ...` is the same from a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.deprecation import renamed_names
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
    "Landed",
    "Progress",
    "Summary",
    "claims_audit",
    "claims_collect",
    "default_checkpoint",
    "land",
    "landed_ranges",
    "read_with_tail",
    "replay",
    "snapshot_bucket",
    "start_landing",
]


def _load_lazily(name: str) -> Any:
    # On first use: jobs on claims need the extra `headrace[claims]`, the others do not.
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
