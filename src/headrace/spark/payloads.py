"""Payloads of claims, fetched where the rows are: by a thread of the process, several at once, handed out in order.

Owns the fetching in executors (and in `headrace.read`). Invariants: what is handed out was verified; what is under way at
once is bounded by number and by bytes; a claim that is beyond help is an outcome, a store that does not answer is an
error, so that an outage never becomes missing data. Must not know Spark.
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
from headrace.claims.consumer import fetched
from headrace.claims.errors import ClaimFailure, ConfigError, Forbidden, TooLarge, Unavailable
from headrace.claims.reference import Reference
from headrace.claims.stores import ObjectStore, open_store

T = TypeVar("T")

PARALLEL = 8
SIZE_MAX = 256 << 20
#: Bytes of payloads that are fetched ahead of the one in use.
_AHEAD_BYTES = 64 << 20
_ATTEMPTS = 3
_PAUSE_S = 0.2


def configs_of(text: str | os.PathLike[str]) -> tuple[ClaimConfig, ...]:
    """Configurations of claims from a YAML file, or from the YAML itself, as clusters may not have the file."""
    given = os.fspath(text)
    if "\n" in given or given.lstrip().startswith(("{", "namespace:")):
        import yaml

        documents = [item for item in yaml.safe_load_all(given) if item is not None]
        found = [from_mapping(document) for document in documents]
    else:
        if not Path(given).is_file():
            raise ConfigError(given, "there is no such file; give a YAML file, or its text")
        found = load_all(given)
    return usable(found)


def usable(configs: Sequence[ClaimConfig]) -> tuple[ClaimConfig, ...]:
    """Configurations that other processes can follow."""
    for config in configs:
        if config.backend == "memory":
            raise ConfigError(
                "claim_check.backend", "objects in memory cannot be reached from other processes"
            )
    return tuple(configs)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is fetched at once, and how large a payload may be."""

    parallel: int = PARALLEL
    size_max: int = SIZE_MAX


@dataclass(frozen=True, slots=True)
class Outcome:
    """A payload, or why there is none."""

    data: bytes | None
    error: ClaimFailure | None = None


class Fetcher:
    """Resolves references of the namespaces that are configured."""

    def __init__(self, configs: Sequence[ClaimConfig], limits: Limits | None = None) -> None:
        self._configs = {config.namespace: config for config in configs}
        self._limits = limits or Limits()

    def fetch(self, payloads: Iterable[bytes]) -> Iterator[Outcome]:
        """What each of these references stands for, in their order; `Unavailable` when a store does not answer."""
        waiting: deque[tuple[int, Future[bytes] | ClaimFailure]] = deque()
        held = 0
        for payload in payloads:
            size, begun = self._begin(payload)
            waiting.append((size, begun))
            held += size
            while len(waiting) >= self._limits.parallel or (held > _AHEAD_BYTES and len(waiting) > 1):
                size, begun = waiting.popleft()
                held -= size
                yield _outcome(begun)
        while waiting:
            yield _outcome(waiting.popleft()[1])

    def _begin(self, payload: bytes) -> tuple[int, Future[bytes] | ClaimFailure]:
        try:
            reference, config = self._checked(payload)
        except ClaimFailure as error:
            return 0, error
        return reference.original_size, run_soon(_whole(config, reference))

    def _checked(self, payload: bytes) -> tuple[Reference, ClaimConfig]:
        reference = references.decode(payload)
        namespace = reference.object_key.partition("/")[0]
        config = self._configs.get(namespace)
        if config is None:
            raise Forbidden(
                f"claim {reference.claim_id} is of namespace {namespace!r}, which is not configured; "
                f"there are {', '.join(self._configs)}",
                reference.claim_id,
            )
        references.check(reference, config, time.time_ns())
        if reference.original_size > self._limits.size_max:
            raise TooLarge(
                f"claim {reference.claim_id} has {reference.original_size} bytes, a row may have "
                f"{self._limits.size_max}",
                reference.claim_id,
            )
        return reference, config


def _outcome(begun: Future[bytes] | ClaimFailure) -> Outcome:
    if isinstance(begun, ClaimFailure):
        return Outcome(None, begun)
    try:
        return Outcome(begun.result())
    except ClaimFailure as error:
        if error.retryable:
            raise
        return Outcome(None, error)


async def _whole(config: ClaimConfig, reference: Reference) -> bytes:
    """A payload in one piece; a store that stumbles is asked again."""
    for attempt in range(_ATTEMPTS):
        try:
            pieces = [piece async for piece in fetched(_store(os.getpid(), _Key(config)), reference)]
            return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        except Unavailable:
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt raises")


class _Key:
    """A configuration as a key: by what it says, since its mappings have no hash."""

    def __init__(self, config: ClaimConfig) -> None:
        self.config = config
        self._text = repr((config, sorted(config.store.items(), key=str)))

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text


@lru_cache(maxsize=16)
def _store(pid: int, key: _Key) -> ObjectStore:
    """This process's store of a configuration: Spark forks its workers and keeps them."""
    return open_store(key.config)


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


def run_soon(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run it on this process's background loop."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it there and wait for it."""
    return run_soon(work).result()


def _loop() -> asyncio.AbstractEventLoop:
    pid = os.getpid()
    with _lock:
        loop = _loops.get(pid)
        if loop is None:
            _loops.clear()  # a forked child has its parent's entry, but not its thread
            loop = _loops[pid] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="headrace-claims", daemon=True).start()
    return loop
