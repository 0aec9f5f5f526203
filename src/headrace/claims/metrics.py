"""Metrics of the claim check, under the names that its alerts and dashboard use.

Counters end in `_total` as is usual in Prometheus; `deploy/claims.rules.yml` records them under the plain names too.
State changes are counted where they happen once (the registry's compare-and-set), not per call to the store.
"""

from __future__ import annotations

from headrace.deprecation import RenamedAttribute
from headrace.extras import require_extra

require_extra("claims", "prometheus_client")

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # noqa: E402

_DURATION_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300)
_SIZE_BUCKETS = tuple(1024 * 4**power for power in range(11))
_LIFETIME_BUCKETS = (1, 10, 60, 300, 900, 3600, 7200, 21600, 43200, 86400, 172800, 604800)
_LABELS = ("namespace",)


class Metrics:
    """One set of metrics; pass the registry that your program exports, or use `registry`."""

    introduce = RenamedAttribute("init_labels")

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.created = self._counter("claims_created", "Claims stored and published")
        self.upload_duration = self._histogram(
            "claim_upload_duration", "Seconds to store a claim", _DURATION_BUCKETS
        )
        self.upload_bytes = self._histogram("claim_upload_bytes", "Bytes stored for a claim", _SIZE_BUCKETS)
        self.retrieved = self._counter("claims_retrieved", "Claims fetched and verified")
        self.deleted = self._counter("claims_deleted", "Claims removed after all consumers had read them")
        self.delete_failures = self._counter(
            "claim_delete_failures", "Deletions that failed in the object store"
        )
        self.retrieval_duration = self._histogram(
            "claim_retrieval_duration", "Seconds to fetch a claim", _DURATION_BUCKETS
        )
        self.not_found = self._counter(
            "claim_not_found_errors", "Claims expired or missing when they were fetched"
        )
        self.expired = self._counter("claims_expired", "Claims removed because of their age")
        self.expired_unread = self._counter(
            "claims_expired_unread", "Claims removed because of their age before every consumer had read them"
        )
        self.orphaned = self._gauge("orphaned_claims", "Objects past max_age and grace at the last sweep")
        self.live = self._gauge("live_claims", "Claims in the registry at the last sweep")
        self.live_bytes = self._gauge(
            "live_bytes", "Stored bytes of claims in the registry at the last sweep"
        )
        self.lifetime = self._histogram(
            "claim_lifetime_seconds", "Seconds from creation to removal of a claim", _LIFETIME_BUCKETS
        )
        self.errors = self._counter("claim_errors", "Claims that could not be delivered, by reason", "reason")
        self.rejected = self._counter("records_rejected", "Invalid records in the registry, by kind", "kind")

    def init_labels(self, namespace: str) -> None:
        """Start every series at zero: a rate needs a first sample before the first event."""
        for metric in (self.created, self.retrieved, self.deleted, self.delete_failures, self.not_found):
            metric.labels(namespace)
        self.expired.labels(namespace)
        self.expired_unread.labels(namespace)
        for kind in ("claim", "due", "lease", "config"):
            self.rejected.labels(namespace, kind)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"claim_check_{name}", text, (*_LABELS, *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"claim_check_{name}", text, _LABELS, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"claim_check_{name}", text, _LABELS, registry=self.registry, buckets=buckets)
