"""What the handlers of the API may use of an account's JetStream.

Owns no behaviour. `AccountJetStream` implements it; handlers name this protocol instead, so that they do not depend on
the module that puts all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from headrace.broker.account_context import StreamJetStream
from headrace.broker.commit.disk_backpressure import DiskBackpressure
from headrace.broker.handlers.lease_registry import LeaseRegistry
from headrace.broker.operation_runner import OffloopRunner, OperationRunner
from headrace.broker.stream import Stream
from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.validation.stream_configs import StreamConfigs
from headrace.storage import StreamLog


class RegistryContext(Protocol):
    """The streams of one account, seen from the handlers of its API."""

    @property
    def configs(self) -> StreamConfigs:
        """Return the configurations of all streams by name."""

    def get_stream(self, name: str) -> Stream:
        """Return the stream with that name, or raise the API's error."""

    @property
    def sorted_names(self) -> list[str]:
        """Return the names of all streams in order."""

    def iter_create_stream(self, config: StreamConfig) -> Generator[None, None, Stream]:
        """Create a stream from a validated configuration, in slices."""

    def iter_update_stream(self, stream: Stream, config: StreamConfig) -> Iterator[None]:
        """Apply a validated configuration, in slices."""

    def iter_delete_stream(self, stream: Stream) -> Iterator[None]:
        """Delete a stream with its consumers and messages, in slices."""

    def register_stream(
        self, config: StreamConfig, log: StreamLog, restore_state: Callable[[Stream], None] | None = None
    ) -> Stream:
        """Add a stream whose log exists already."""


class ApiContext(StreamJetStream, Protocol):
    """One account's JetStream, seen from the handlers of its API."""

    reject_unknown_fields: bool
    api_total: int
    api_errors: int
    disk_backpressure: DiskBackpressure
    pin_leases: LeaseRegistry
    run_operation: OperationRunner
    run_off_loop: OffloopRunner

    @property
    def streams(self) -> dict[str, Stream]:
        """Return all streams of the account by name."""

    @property
    def registry(self) -> RegistryContext:
        """Return what creates, changes and deletes streams."""

    @property
    def restores(self) -> dict[str, Any]:
        """Return the restores under way, by stream."""
