"""The protocol between a consumer and the part that knows its receivers: pull requests or a deliver subject.

Owns no behaviour. `PullQueue` and `PushDelivery` implement it; a consumer does not need to know which one it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.broker.consumers.bulk_delivery_targets import FanoutTargets
    from headrace.broker.consumers.flow_control import FlowWindow
    from headrace.broker.consumers.pinned_client import PinnedClient
    from headrace.jetstream_api.configs import ConsumerConfig
    from headrace.storage.sequence_arrays import Seqs


class RunDelivery(Protocol):
    """Delivers a run of records to a receiver inside the server."""

    def __call__(
        self, view: memoryview, seqs: Seqs, at: int, limit: int, num_pending: int
    ) -> tuple[int, int, int]:
        """Deliver records from `at` on; return how many were taken, their size, and what storing them adds to it."""


class DeliveryMode(Protocol):
    """The receivers of one consumer."""

    @property
    def kind(self) -> str:
        """Return "pull" or "push"."""

    @property
    def flow_window(self) -> FlowWindow | None:
        """Return the flow-control window, if deliveries are bounded by one."""

    @property
    def pinned_client(self) -> PinnedClient | None:
        """Return the client that a priority group is pinned to, where requests can have groups."""

    @property
    def internal_delivery(self) -> RunDelivery | None:
        """Return how to deliver to the only receiver, if it is inside this server and takes runs of records."""

    @property
    def waiting_count(self) -> int:
        """Return how many requests wait."""

    @property
    def is_bound(self) -> bool:
        """Return whether the deliver subject has a subscriber."""

    def open(self) -> None:
        """Start to receive what clients send to this mode."""

    def close(self) -> None:
        """Stop: the consumer is being deleted. Requests that wait are ended."""

    def on_shutdown(self) -> None:
        """End the requests that wait: the server shuts down."""

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply a new configuration of the consumer."""

    def on_request(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle CONSUMER.MSG.NEXT."""

    def enqueue(self, reply: bytes, body: bytes) -> None:
        """Queue a pull request: one that `on_request` accepted, or one that came with an acknowledgement (`+NXT`)."""

    def has_demand(self) -> bool:
        """Return whether a message would be received now."""

    def fanout_targets(self) -> FanoutTargets | None:
        """Return the receivers for a run of messages; None if each message needs a decision."""

    def send(
        self, size: int, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int
    ) -> bool:
        """Send one message; return False if it has no receiver."""

    def on_run_sent(self, count: int, size: int, now_ns: int) -> None:
        """Account for a run that was sent to `fanout_targets`."""

    def after_delivery(self) -> None:
        """Do what is due after the consumer has delivered what it could."""

    def check_timeouts(self, now_ns: int, *, caught_up: bool) -> None:
        """Send heartbeats and end requests that are over; `caught_up`: nothing is left to deliver."""

    def next_timeout(self) -> int:
        """Return when `check_timeouts` is due next; 0 if never."""

    def get_idle_since_ns(self) -> int:
        """Return since when the consumer has been unused; 0 if it is in use."""

    def renew_activity(self, now_ns: int) -> bool:
        """Return whether the consumer is in use after all, although it has been idle for `inactive_threshold`."""
