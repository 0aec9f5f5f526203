"""Three strategies to get a consumer at the upstream, each as a sequence of requests and responses.

Ephemeral: a new consumer at every setup. Server-managed: a durable one, created if it is missing and left alone if it
belongs to another stream. User-managed: a durable one that the user creates; it is only ever reset. A strategy says
what to request next; it knows neither time nor messages.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from headrace.broker.sourcing.consumer_ownership import consumer_in_use_error, parse_owner
from headrace.broker.sourcing.upstream_requests import StartPosition, Upstream, UpstreamRequest
from headrace.errors import RequestError
from headrace.jetstream_api.errors import ApiError

#: The upstream does not support the request's API level, or one of its fields.
_OLDER_SERVER_ERRORS = (ApiError.REQUIRED_API_LEVEL, ApiError.INVALID_JSON)
_NO_CONSUMER = ApiError.CONSUMER_NOT_FOUND
_DELIVER_ALL_ONLY = ApiError.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL
#: The upstream's limits are lower than what was requested.
_LIMIT_ERRORS = (
    ApiError.CONSUMER_MAX_PENDING_ACK_EXCESS,
    ApiError.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED,
    ApiError.CONSUMER_INACTIVE_THRESHOLD_EXCESS,
)


class UpstreamError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class UpstreamConsumerConfig(msgspec.Struct):
    ack_policy: str = ""
    deliver_subject: str = ""
    filter_subject: str = ""
    filter_subjects: list[str] | None = None
    metadata: dict[str, str] = {}

    @property
    def filters(self) -> list[str]:
        """What it filters; [] for everything."""
        return [self.filter_subject] if self.filter_subject else self.filter_subjects or []


class ConsumerPosition(msgspec.Struct):
    stream_seq: int = 0


class ConsumerResponse(msgspec.Struct):
    """The fields of a consumer's create, reset or info response that are used, and the response itself."""

    error: UpstreamError | None = None
    name: str = ""
    config: UpstreamConsumerConfig | None = None
    delivered: ConsumerPosition = msgspec.field(default_factory=ConsumerPosition)
    ack_floor: ConsumerPosition = msgspec.field(default_factory=ConsumerPosition)
    push_bound: bool = False
    body: bytes = b""


class EphemeralConsumer:
    """Creates a new consumer at every setup."""

    #: Whether to delete the consumer with its source; where to watch for deliveries of a missing one.
    deletes_consumer, probe_subject = True, b""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.name = upstream.consumer_base_name
        self._variant, self._within_limits = 0, False
        self._start_position, self._identity = StartPosition(), ""

    def first_request(self, start_position: StartPosition, identity: str) -> UpstreamRequest:
        """Return the first request of a setup."""
        self._variant, self._start_position, self._identity = 0, start_position, identity
        self._within_limits = False
        return self._create()

    def on_error(self, err_code: int) -> UpstreamRequest | None:
        """Return what to request instead; `err_code` 0 means that there was no response."""
        if err_code in _LIMIT_ERRORS and not self._within_limits:
            self._within_limits = True
            return self._create()
        if err_code not in _OLDER_SERVER_ERRORS or self._variant + 1 == self._upstream.compat_variants:
            return None
        self._variant += 1
        return self._create()

    def _create(self) -> UpstreamRequest:
        return self._upstream.make_create_request(
            self._start_position, self._identity, self._variant, within_limits=self._within_limits
        )

    def on_success(self, response: ConsumerResponse) -> UpstreamRequest | None:
        """Return the next request, or None if the setup is done."""
        return None

    def get_deliver_subject(self, config: UpstreamConsumerConfig) -> bytes:
        return config.deliver_subject.encode()


class UserManagedConsumer:
    """Uses a durable consumer that the user creates."""

    deletes_consumer = False

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        consumer = upstream.consumer
        assert consumer is not None
        self.name = consumer.name
        self.probe_subject = consumer.deliver_subject.encode()

    def first_request(self, start_position: StartPosition, identity: str) -> UpstreamRequest:
        return self._upstream.make_reset_request(identity)

    def on_error(self, err_code: int) -> UpstreamRequest | None:
        return None

    def on_success(self, response: ConsumerResponse) -> UpstreamRequest | None:
        assert response.config is not None
        if response.config.ack_policy != "flow_control":
            api_error = (
                ApiError.MIRROR_CONSUMER_REQUIRES_ACK_FC
                if self._upstream.is_mirror
                else ApiError.SOURCE_CONSUMER_REQUIRES_ACK_FC
            )
            raise api_error()
        actual = response.config.deliver_subject
        if actual != self.probe_subject.decode():
            raise _make_deliver_subject_error(self._upstream, actual)
        return None

    def get_deliver_subject(self, config: UpstreamConsumerConfig) -> bytes:
        return self.probe_subject


def _make_deliver_subject_error(upstream: Upstream, actual: str) -> RequestError:
    """Return the error for a consumer that delivers elsewhere: nothing would ever arrive."""
    invalid = (
        ApiError.MIRROR_DURABLE_CONSUMER_CFG_INVALID
        if upstream.is_mirror
        else ApiError.SOURCE_DURABLE_CONSUMER_CFG_INVALID
    )()
    expected = upstream.get_stable_deliver_subject()
    text = (
        f"{invalid.description}: consumer {upstream.durable_name!r} of stream {upstream.stream_name!r} delivers to "
        f"{actual!r}, but `deliver_subject` is {expected!r}"
    )
    return RequestError(invalid.code, invalid.err_code, text)


class _Step(Enum):
    """The last request of a server-managed setup."""

    LOOK = auto()
    ADOPT = auto()
    CREATE = auto()
    RESET = auto()


class ServerManagedConsumer:
    """Uses a durable consumer of its own: check whether it exists and is ours, create it if missing, then reset it."""

    probe_subject = b""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        assert upstream.consumer is not None
        self.name = upstream.durable_name
        self.deletes_consumer = True  # unless it turns out to be another stream's
        self._start_position, self._identity = StartPosition(), ""
        self._step = _Step.LOOK
        #: Whether the existing consumer can be used even if it cannot be updated.
        self._may_keep = False
        self._within_limits = False

    def first_request(self, start_position: StartPosition, identity: str) -> UpstreamRequest:
        self._start_position, self._identity = start_position, identity
        self._step, self._may_keep, self._within_limits = _Step.LOOK, False, False
        return self._upstream.make_info_request()

    def on_error(self, err_code: int) -> UpstreamRequest | None:
        if self._step is _Step.CREATE:
            if err_code in _LIMIT_ERRORS and not self._within_limits:
                self._within_limits = True
            elif err_code == _DELIVER_ALL_ONLY and self._start_position != StartPosition():
                self._start_position = (
                    StartPosition()
                )  # a work queue has no messages that were already consumed
            else:
                return None
            return self._create()
        if err_code == _NO_CONSUMER:
            return self._create()
        if self._step is _Step.ADOPT and self._may_keep:
            return self._reset()
        if err_code:
            return None
        if self._step is _Step.LOOK:
            return self._reset()  # RESET may be allowed where INFO is not; its response names the owner
        return self._create() if self._step is _Step.RESET else None

    def on_success(self, response: ConsumerResponse) -> UpstreamRequest | None:
        assert response.config is not None
        heir = self._check_owner(response, response.config.metadata)
        if self._step is _Step.RESET:
            if response.config.ack_policy != "flow_control":
                api_error = (
                    ApiError.MIRROR_CONSUMER_REQUIRES_ACK_FC
                    if self._upstream.is_mirror
                    else ApiError.SOURCE_CONSUMER_REQUIRES_ACK_FC
                )
                raise api_error()
            return None
        if heir:
            self._step = _Step.ADOPT
            return self._upstream.adopt(msgspec.json.decode(response.body)["config"])
        return self._reset()

    def _check_owner(self, response: ConsumerResponse, metadata: dict[str, str]) -> bool:
        """Raise if the consumer belongs to another stream; return whether its owner has to be updated.

        That is the case if it is taken over from where this stream was before, or does not name its server yet.
        """
        own, found = self._upstream.owner, parse_owner(metadata)
        is_own = found is None or own.owns(found)
        # A consumer made by hand, by nats-server or by an earlier version names no owner: another client may
        # read through it.
        is_unnamed = is_own and self._step is _Step.LOOK and (found is None or not found.server)
        is_heir = (
            found is not None and not is_own and own.may_take_over_from(found, is_bound=response.push_bound)
        )
        self.deletes_consumer = is_heir or (is_own and not (is_unnamed and response.push_bound))
        if not self.deletes_consumer:
            raise consumer_in_use_error(self.name, self._upstream.stream_name, found or "another client")
        self._may_keep = is_own
        return self._step is _Step.LOOK and (is_heir or (is_unnamed and bool(own.server)))

    def _create(self) -> UpstreamRequest:
        self._step = _Step.CREATE
        return self._upstream.make_create_durable_request(
            self._start_position, within_limits=self._within_limits
        )

    def _reset(self) -> UpstreamRequest:
        self._step = _Step.RESET
        return self._upstream.make_reset_request(self._identity)

    def get_deliver_subject(self, config: UpstreamConsumerConfig) -> bytes:
        return config.deliver_subject.encode()


ConsumerStrategy = EphemeralConsumer | UserManagedConsumer | ServerManagedConsumer


def strategy_for(upstream: Upstream) -> ConsumerStrategy:
    """Return the strategy that the configuration asks for."""
    consumer = upstream.consumer
    if consumer is None:
        return EphemeralConsumer(upstream)
    return ServerManagedConsumer(upstream) if consumer.server_managed else UserManagedConsumer(upstream)
