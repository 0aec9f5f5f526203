"""Assembles the claim check: `claims = await Claims.open(connection, config)`.

Opening creates what is missing (bucket, lifecycle rules, registry, audit trail), compares the namespace's published
configuration, and fails if any of that is impossible: a producer that could not clean up must not start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, overload

from nats.aio.client import Client as Connection
from nats.js import JetStreamContext
from nats.js.api import DEFAULT_PREFIX

from headrace.claims import published_config
from headrace.claims import reference as references
from headrace.claims.audit_trail import Audit
from headrace.claims.claim_deletion import ClaimDeleter
from headrace.claims.collector import Collector
from headrace.claims.config import ClaimConfig
from headrace.claims.config_lint import Finding, lint
from headrace.claims.consumer import ClaimConsumer
from headrace.claims.jetstream_client import JetStreamClient
from headrace.claims.malformed_record_report import Rejections
from headrace.claims.message_resolver import MessageResolver
from headrace.claims.metrics import Metrics
from headrace.claims.producer import ClaimProducer
from headrace.claims.registry import Registry
from headrace.claims.stores import ObjectStore, open_store
from headrace.claims.stores import lifecycle as lifecycles
from headrace.claims.sweeper import Sweeper
from headrace.claims.wrapped_jetstream import ClaimJetStream
from headrace.client import JetStream, sync
from headrace.clock import Clock, SystemClock
from headrace.deprecation import RenamedAttribute

_LOG = logging.getLogger("headrace.claims")


class Claims:
    """One namespace on one connection: `producer`, `consumer`, `collector`. The caller owns the connection."""

    wire = RenamedAttribute("jetstream")

    def __init__(
        self,
        connection: Connection,
        config: ClaimConfig,
        *,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        timeout_s: float = 5.0,
        retry_s: float = 30.0,
        draw_id: Callable[[], str] = references.make_random_id,
    ) -> None:
        self.config = config
        self.jetstream = JetStreamClient(connection, timeout_s=timeout_s)
        self.store = store or open_store(config, clock)
        self.metrics = metrics or Metrics()
        self.metrics.init_labels(config.namespace)
        self.audit = Audit(self.jetstream, enabled=config.audit, stream_settings=config.stream_settings)
        self.registry = Registry(
            self.jetstream,
            Rejections(config.namespace, self.audit, self.metrics).report,
            config.stream_settings,
        )
        shared = (self.registry, self.audit, self.metrics)
        local = clock or SystemClock()
        self.producer = ClaimProducer(self.jetstream, config, self.store, *shared, local, draw_id)
        self.consumer = ClaimConsumer(self.jetstream, config, self.store, *shared, local)
        self.resolver = MessageResolver(self.consumer, self.jetstream)
        deleter = ClaimDeleter(config, self.store, *shared)
        sweeper = Sweeper(config, self.store, self.registry, deleter, self.metrics)
        self.collector = Collector(
            self.jetstream, config, self.registry, deleter, sweeper, clock, retry_s=retry_s
        )

    @classmethod
    async def open(
        cls,
        connection: Connection,
        config: ClaimConfig,
        *,
        streams: Sequence[str] = (),
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        timeout_s: float = 5.0,
        retry_s: float = 30.0,
        set_up: bool = True,
    ) -> Claims:
        """Set up and check everything; `streams` that carry the references are checked too, with warnings.

        With `set_up=False` nothing is created: for programs without the permissions to do so, when a collector has set
        up the namespace before. The namespace's published configuration is compared with this one.
        """
        claims = cls(
            connection,
            config,
            store=store,
            clock=clock,
            metrics=metrics,
            timeout_s=timeout_s,
            retry_s=retry_s,
        )
        if not set_up:
            await claims.check()
            return claims
        await claims.set_up()
        for finding in await claims.lint(streams):
            _LOG.warning("%s", finding)
        return claims

    async def check(self) -> None:
        """Compare with what a collector has set up, by reading only; raise `ConfigConflict` if that cannot work."""
        for warning in await published_config.check(self.jetstream, self.config, required=True):
            _LOG.warning("%s", warning)

    async def set_up(self) -> None:
        await self.registry.ensure()
        await self.audit.ensure()
        await published_config.check_published_config(self.jetstream, self.config)
        await self.store.ensure_bucket()
        if self.store.lifecycle is not None:
            await lifecycles.ensure_rules(
                self.store.lifecycle, self.config.namespace, self.config.lifecycle_days
            )
        await self.collector.ensure()

    @overload
    def wrap(self, js: JetStreamContext) -> ClaimJetStream: ...

    @overload
    def wrap(self, js: sync.Client) -> sync.Client: ...

    def wrap(self, js: JetStreamContext | sync.Client) -> ClaimJetStream | sync.Client:
        """Return a JetStream context like this one, in which payloads above the threshold become claims.

        `publish`, `publish_async`, `consume`, `subscribe`, `pull_subscribe` and `get_msg` store and read them; a program
        never sees a reference. A blocking client is returned for a blocking client.
        """
        if isinstance(js, sync.Client):
            return js.replace_context(self.wrap(js.js))
        if not isinstance(js, JetStreamContext):
            raise TypeError(f"wrap() needs a JetStream context, not {js!r}: claims.wrap(nc.jetstream())")
        if isinstance(js, ClaimJetStream):
            raise ValueError("this context is wrapped already: wrap the one that nc.jetstream() returned")
        options = JetStream.get_options(js)
        if options["conn"] is not self.jetstream.connection:
            raise ValueError(
                "the context belongs to another connection: wrap nc.jetstream() of the connection of these claims"
            )
        if options["prefix"] != DEFAULT_PREFIX:
            raise ValueError(
                f"claims work without a domain, but API requests of this context begin with {options['prefix']!r}"
            )
        return ClaimJetStream(js, self.producer, self.consumer, self.resolver, **options)

    async def lint(self, streams: Sequence[str] = ()) -> list[Finding]:
        return await lint(self.jetstream, self.config, self.store, streams)

    async def close(self) -> None:
        """Close the store and the subscription; the connection stays open."""
        await self.jetstream.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
