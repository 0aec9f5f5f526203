"""Fetches the payloads of claims in the process that has the rows: on one thread, several at once, returned in order.

Owns the fetching in executors (and in `headrace.read`). Invariants: every payload returned was verified; the number and
the bytes of concurrent fetches are bounded; a claim that can never be read is an outcome, but an object store that does
not answer is an error, so that an outage never turns into missing data. Must not know Spark.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from headrace.claims import reference as references
from headrace.claims.config import ClaimConfig, from_mapping, load_all
from headrace.claims.errors import ClaimFailure, ConfigError, Forbidden, StoreUnavailable, TooLarge
from headrace.claims.payload_fetch import fetch_whole
from headrace.claims.reference import Reference
from headrace.claims.stores import ObjectStore, open_store

T = TypeVar("T")

DEFAULT_PARALLEL = 8
DEFAULT_SIZE_MAX = 256 << 20
#: Bytes of payloads to fetch ahead of the one in use.
_PREFETCH_BYTES = 64 << 20
_ATTEMPTS = 3
_RETRY_PAUSE_S = 0.2


def load_claim_configs(text: str | os.PathLike[str]) -> tuple[ClaimConfig, ...]:
    """Load claim configurations from a YAML file, or from YAML text, because cluster nodes may not have the file."""
    path_or_yaml = os.fspath(text)
    if "\n" in path_or_yaml or path_or_yaml.lstrip().startswith(("{", "namespace:")):
        import yaml

        documents = [item for item in yaml.safe_load_all(path_or_yaml) if item is not None]
        found = [from_mapping(document) for document in documents]
    else:
        if not Path(path_or_yaml).is_file():
            raise ConfigError(
                path_or_yaml, "there is no such file; give the path of a YAML file, or YAML text"
            )
        found = load_all(path_or_yaml)
    return check_claim_configs(found)


def check_claim_configs(configs: Sequence[ClaimConfig]) -> tuple[ClaimConfig, ...]:
    """Check that other processes can use these configurations."""
    for config in configs:
        if config.backend == "memory":
            raise ConfigError(
                "claim_check.backend", "memory is not supported: other processes cannot read it"
            )
    return tuple(configs)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How many payloads are fetched at once, and how large one may be."""

    parallel: int = DEFAULT_PARALLEL
    size_max: int = DEFAULT_SIZE_MAX


@dataclass(frozen=True, slots=True)
class FetchResult:
    """A payload, or the reason why there is none."""

    data: bytes | None
    error: ClaimFailure | None = None


class ClaimFetcher:
    """Resolves references of the configured namespaces."""

    def __init__(self, configs: Sequence[ClaimConfig], limits: FetchLimits | None = None) -> None:
        self._configs = {config.namespace: config for config in configs}
        self._limits = limits or FetchLimits()

    def fetch(self, payloads: Iterable[bytes]) -> Iterator[FetchResult]:
        """Yield the result for each reference, in order; raise `StoreUnavailable` if a store does not answer."""
        pending: deque[tuple[int, Future[bytes] | ClaimFailure]] = deque()
        pending_bytes = 0
        for payload in payloads:
            size, started = self._start_fetch(payload)
            pending.append((size, started))
            pending_bytes += size
            while len(pending) >= self._limits.parallel or (
                pending_bytes > _PREFETCH_BYTES and len(pending) > 1
            ):
                size, started = pending.popleft()
                pending_bytes -= size
                yield _to_result(started)
        while pending:
            yield _to_result(pending.popleft()[1])

    def _start_fetch(self, payload: bytes) -> tuple[int, Future[bytes] | ClaimFailure]:
        try:
            reference, config = self._parse_reference(payload)
        except ClaimFailure as error:
            return 0, error
        return reference.original_size, submit(_fetch_payload(config, reference))

    def _parse_reference(self, payload: bytes) -> tuple[Reference, ClaimConfig]:
        reference = references.decode(payload)
        namespace = reference.object_key.partition("/")[0]
        config = self._configs.get(namespace)
        if config is None:
            raise Forbidden(
                f"claim {reference.claim_id} belongs to namespace {namespace!r}, which is not configured; "
                f"configured namespaces: {', '.join(self._configs)}",
                reference.claim_id,
            )
        references.check(reference, config, time.time_ns())
        if reference.original_size > self._limits.size_max:
            raise TooLarge(
                f"claim {reference.claim_id} has {reference.original_size} bytes, more than the limit for a row, "
                f"{self._limits.size_max}",
                reference.claim_id,
            )
        return reference, config


def _to_result(started: Future[bytes] | ClaimFailure) -> FetchResult:
    if isinstance(started, ClaimFailure):
        return FetchResult(None, started)
    try:
        return FetchResult(started.result())
    except ClaimFailure as error:
        if error.retryable:
            raise
        return FetchResult(None, error)


async def _fetch_payload(config: ClaimConfig, reference: Reference) -> bytes:
    """Fetch a payload as one bytes object; retry if the store is unavailable."""
    for attempt in range(_ATTEMPTS):
        try:
            return await fetch_whole(_get_store(os.getpid(), _ClaimConfigKey(config)), reference)
        except StoreUnavailable:
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(_RETRY_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt raises")


class _ClaimConfigKey:
    """Makes a configuration hashable by its content, since its mappings are not."""

    def __init__(self, config: ClaimConfig) -> None:
        self.config = config
        self._text = repr((config, sorted(config.store.items(), key=str), list(config.read_from)))

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ClaimConfigKey) and self._text == other._text


@lru_cache(maxsize=16)
def _get_store(pid: int, key: _ClaimConfigKey) -> ObjectStore:
    """Return this process's store for a configuration: Spark forks its workers and reuses them."""
    return open_store(key.config)


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on this process's background loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, _get_loop())


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for it."""
    return submit(coroutine).result()


def _get_loop() -> asyncio.AbstractEventLoop:
    pid = os.getpid()
    with _lock:
        loop = _loops.get(pid)
        if loop is None:
            _loops.clear()  # a forked child has its parent's entry, but not its thread
            loop = _loops[pid] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="headrace-claims", daemon=True).start()
    return loop
