"""Bodies of API requests as typed values; `GO` is the type's name in nats-server's error texts."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from headrace.jetstream_api.configs import ApiStruct, ConsumerConfig, StreamConfig
from headrace.jetstream_api.field_types import Action, Duration, Int, Int64, Time, Uint64


class StreamRequest(StreamConfig):
    """Create or update a stream: the configuration, and whether silent corrections are rejected."""

    GO: ClassVar[str] = "server.StreamConfigRequest"

    pedantic: bool = False

    def to_config(self) -> StreamConfig:
        return StreamConfig(**{name: getattr(self, name) for name in StreamConfig.__struct_fields__})


class ConsumerRequest(ApiStruct):
    """Create or update a consumer."""

    GO: ClassVar[str] = "server.CreateConsumerRequest"

    stream_name: str = ""
    config: ConsumerConfig = msgspec.field(default_factory=ConsumerConfig)
    action: Action = ""
    pedantic: bool = False


class StreamInfoRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiStreamInfoRequest"

    offset: Int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class StreamNamesRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiStreamNamesRequest"

    offset: Int = 0
    subject: str = ""


class StreamListRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiStreamListRequest"

    offset: Int = 0
    subject: str = ""


class ConsumersRequest(ApiStruct):
    """List a stream's consumers, or their names."""

    GO: ClassVar[str] = "server.JSApiConsumersRequest"

    offset: Int = 0


class PurgeRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiStreamPurgeRequest"

    seq: Uint64 = 0
    filter: str = ""
    keep: Uint64 = 0


class MessageGetRequest(ApiStruct):
    """STREAM.MSG.GET and DIRECT.GET."""

    GO: ClassVar[str] = "server.JSApiMsgGetRequest"

    seq: Uint64 = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: Int = 0
    max_bytes: Int = 0
    start_time: Time | None = None
    multi_last: list[str] = msgspec.field(default_factory=list)
    up_to_seq: Uint64 = 0
    up_to_time: Time | None = None
    no_hdr: bool = False


class MessageDeleteRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiMsgDeleteRequest"

    seq: Uint64 = 0
    no_erase: bool = False


class RedriveRequest(ApiStruct):
    """STREAM.MSG.REDRIVE, which nats-server does not have."""

    seq: Uint64 = 0


class PauseRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiConsumerPauseRequest"

    pause_until: Time = "0001-01-01T00:00:00Z"


class UnpinRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiConsumerUnpinRequest"

    group: str = ""


class ResetRequest(ApiStruct):
    """`seq` is None if the body did not name one: reset to the ack floor."""

    GO: ClassVar[str] = "server.JSApiConsumerResetRequest"

    seq: Uint64 | None = None


class NextRequest(ApiStruct):
    """CONSUMER.MSG.NEXT. `structured` distinguishes a JSON body from an empty or numeric one."""

    GO: ClassVar[str] = ""
    structured: ClassVar[bool] = True

    batch: Int = 0
    expires: Duration = 0
    max_bytes: Int = 0
    no_wait: bool = False
    idle_heartbeat: Duration = 0
    group: str = ""
    min_pending: Int64 = 0
    min_ack_pending: Int64 = 0
    id: str = ""
    priority: Int = 0


class BareNextRequest(NextRequest):
    """A pull request without JSON: only a batch, and exempt from the rules of priority groups."""

    structured: ClassVar[bool] = False


class SnapshotRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiStreamSnapshotRequest"

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: Int = 0
    window_size: Int = 0
    jsck: bool = False


class LostData(ApiStruct):
    GO: ClassVar[str] = "server.LostStreamData"

    msgs: list[Uint64] = msgspec.field(default_factory=list)
    bytes: Uint64 = 0


class StreamState(ApiStruct):
    """The state of a stream in a backup."""

    GO: ClassVar[str] = "server.StreamState"

    messages: Uint64 = 0
    bytes: Uint64 = 0
    first_seq: Uint64 = 0
    first_ts: Time = "0001-01-01T00:00:00Z"
    last_seq: Uint64 = 0
    last_ts: Time = "0001-01-01T00:00:00Z"
    num_subjects: Int = 0
    subjects: dict[str, Uint64] = msgspec.field(default_factory=dict)
    num_deleted: Int = 0
    deleted: list[Uint64] = msgspec.field(default_factory=list)
    lost: LostData | None = None
    consumer_count: Int = 0


class RestoreRequest(ApiStruct):
    GO: ClassVar[str] = "server.JSApiStreamRestoreRequest"

    config: StreamConfig = msgspec.field(default_factory=StreamConfig)
    state: StreamState = msgspec.field(default_factory=StreamState)
