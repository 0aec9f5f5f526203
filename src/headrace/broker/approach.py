"""The three ways to come by a consumer at the origin, each as a conversation of requests and answers.

Ephemeral: a new one at every setup. Server-managed: a durable one, made where it is missing, left alone where it is
another stream's. User-managed: a durable one
that somebody else makes; it is only ever reset. An approach says what to ask next; it knows neither time nor messages.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from headrace.api import errors
from headrace.broker.origin import Ask, Origin, Start
from headrace.broker.ownership import in_use, owner_of

#: The peer does not know the request's level, or a field of it.
_OLDER = (10185, 10025)
_NO_CONSUMER = 10014
_DELIVER_ALL_ONLY = 10101


class Problem(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class Config(msgspec.Struct):
    ack_policy: str = ""
    deliver_subject: str = ""
    metadata: dict[str, str] = {}


class Reached(msgspec.Struct):
    stream_seq: int = 0


class Answer(msgspec.Struct):
    """What of a consumer's create, reset or info response is looked at, and the response itself."""

    error: Problem | None = None
    name: str = ""
    config: Config | None = None
    delivered: Reached = msgspec.field(default_factory=Reached)
    push_bound: bool = False
    body: bytes = b""


class Ephemeral:
    """A new consumer every time."""

    #: Whether the consumer goes with its source, and whether to listen for one that is missing.
    deletes, probes = True, b""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.name = origin.base_name
        self._form = 0
        self._start, self._identity = Start(), ""

    def begin(self, start: Start, identity: str) -> Ask:
        """The first request of a setup."""
        self._form, self._start, self._identity = 0, start, identity
        return self._origin.create(start, identity, 0)

    def refused(self, err_code: int) -> Ask | None:
        """What to ask instead; 0 stands for no answer at all."""
        if err_code not in _OLDER or self._form + 1 == self._origin.forms:
            return None
        self._form += 1
        return self._origin.create(self._start, self._identity, self._form)

    def accepted(self, answer: Answer) -> Ask | None:
        """What is left to ask."""
        return None

    def deliver_subject(self, config: Config) -> bytes:
        return config.deliver_subject.encode()


class UserManaged:
    """A durable consumer that is there, or will be."""

    deletes = False

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        consumer = origin.entry.consumer
        assert consumer is not None
        self.name = consumer.name
        self.probes = consumer.deliver_subject.encode()

    def begin(self, start: Start, identity: str) -> Ask:
        return self._origin.reset(identity)

    def refused(self, err_code: int) -> Ask | None:
        return None

    def accepted(self, answer: Answer) -> Ask | None:
        assert answer.config is not None
        if answer.config.ack_policy != "flow_control":
            raise errors.error(10214 if self._origin.mirror else 10217)
        return None

    def deliver_subject(self, config: Config) -> bytes:
        return self.probes


class _Step(Enum):
    """What a server-managed setup has asked last."""

    LOOK = auto()
    ADOPT = auto()
    CREATE = auto()
    RESET = auto()


class ServerManaged:
    """A durable consumer of ours: look whether it is there and ours, make it where it is missing, then reset it."""

    probes = b""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        assert origin.entry.consumer is not None
        self.name = origin.entry.consumer.name
        self.deletes = True  # until it is known to be another stream's
        self._start, self._identity = Start(), ""
        self._step = _Step.LOOK
        #: Whether the consumer that was found can be used also if it cannot be changed.
        self._may_keep = False

    def begin(self, start: Start, identity: str) -> Ask:
        self._start, self._identity = start, identity
        self._step, self._may_keep = _Step.LOOK, False
        return self._origin.look()

    def refused(self, err_code: int) -> Ask | None:
        if self._step is _Step.CREATE:
            if err_code != _DELIVER_ALL_ONLY or self._start == Start():
                return None
            self._start = Start()  # a work queue holds nothing that was taken before
            return self._create()
        if err_code == _NO_CONSUMER:
            return self._create()
        if self._step is _Step.ADOPT and self._may_keep:
            return self._reset()
        if err_code:
            return None
        if self._step is _Step.LOOK:
            return self._reset()  # who may not look may reset, and sees the owner in that answer
        return self._create() if self._step is _Step.RESET else None

    def accepted(self, answer: Answer) -> Ask | None:
        assert answer.config is not None
        heir = self._check_owner(answer, answer.config.metadata)
        if self._step is _Step.RESET:
            if answer.config.ack_policy != "flow_control":
                raise errors.error(10214 if self._origin.mirror else 10217)
            return None
        if heir:
            self._step = _Step.ADOPT
            return self._origin.adopt(msgspec.json.decode(answer.body)["config"])
        return self._reset()

    def _check_owner(self, answer: Answer, metadata: dict[str, str]) -> bool:
        """Refuse a consumer of another stream; whether it is one to take over from where this stream was before, or one
        that does not name its server yet."""
        own, found = self._origin.owner, owner_of(metadata)
        is_own = found is None or own.owns(found)
        # One of an earlier version, of nats-server or made by hand does not say whose it is: another may read with it.
        is_unnamed = is_own and self._step is _Step.LOOK and (found is None or not found.server)
        is_heir = found is not None and not is_own and own.is_heir_of(found, is_bound=answer.push_bound)
        self.deletes = is_heir or (is_own and not (is_unnamed and answer.push_bound))
        if not self.deletes:
            raise in_use(self.name, self._origin.entry.name, found or "somebody else")
        self._may_keep = is_own
        return self._step is _Step.LOOK and (is_heir or (is_unnamed and bool(own.server)))

    def _create(self) -> Ask:
        self._step = _Step.CREATE
        return self._origin.create_durable(self._start)

    def _reset(self) -> Ask:
        self._step = _Step.RESET
        return self._origin.reset(self._identity)

    def deliver_subject(self, config: Config) -> bytes:
        return config.deliver_subject.encode()


Approach = Ephemeral | UserManaged | ServerManaged


def approach_to(origin: Origin) -> Approach:
    """The way that the configuration asks for."""
    consumer = origin.entry.consumer
    if consumer is None:
        return Ephemeral(origin)
    return ServerManaged(origin) if consumer.server_managed else UserManaged(origin)
