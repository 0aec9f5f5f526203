"""Settings of one account's JetStream: what its constructor needs to know, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.broker.consumers.flow_control import START_BYTES
from headrace.broker.operation_runner import OffloopRunner, OperationRunner, run_at_once, run_unmeasured
from headrace.broker.streams.atomic_batch import DEFAULT_LIMITS, AtomicBatchBudget
from headrace.broker.streams.fast_ingest import DEFAULT_LIMITS as FAST_LIMITS
from headrace.broker.streams.fast_ingest import FastIngestBudget
from headrace.jetstream_api.account_limits import NO_LIMITS, JetStreamLimits


@dataclass(frozen=True, slots=True)
class JetStreamSettings:
    """`pending_max` is how many bytes a client may have unread; `flow_bytes` the first flow-control window.

    The accounts of a server share the budgets of batches.
    """

    server_name: str
    account: str = "$G"
    domain: str = ""
    reject_unknown_fields: bool = True  # whether a request with an unknown key is rejected
    pending_max: int = 64 * 1024 * 1024
    limits: JetStreamLimits = NO_LIMITS
    batch_budget: AtomicBatchBudget = field(default_factory=lambda: AtomicBatchBudget(DEFAULT_LIMITS))
    fast_ingest_budget: FastIngestBudget = field(default_factory=lambda: FastIngestBudget(FAST_LIMITS))
    flow_bytes: int = START_BYTES
    run_operation: OperationRunner = run_unmeasured
    run_off_loop: OffloopRunner = run_at_once
