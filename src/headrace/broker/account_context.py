"""What streams may use of their account's JetStream.

Owns no behaviour. `AccountJetStream` implements it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.broker.consumers.consumer_context import ConsumerJetStream
from headrace.broker.streams.atomic_batch import AtomicBatchBudget
from headrace.broker.streams.fast_ingest import FastIngestBudget


class StreamJetStream(ConsumerJetStream, Protocol):
    """One account's JetStream, seen from its streams."""

    batch_budget: AtomicBatchBudget
    fast_ingest_budget: FastIngestBudget
    pending_max: int
    backups: set[Any]

    @property
    def streams(self) -> Mapping[str, Any]:
        """Return all streams of the account by name."""
