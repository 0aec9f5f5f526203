"""Client for applications: nats-py plus continuous consumption, atomic batches, buckets with TTL, and consumer resets.

Connections, contexts, configurations and errors are nats-py's own, extended; everything works the same with Headrace
and nats-server. `headrace.client.sync` is the same without `await`.
"""

from headrace.client.batch import MAX_MESSAGES, Batch, BatchAck
from headrace.client.codecs import Codec
from headrace.client.configs import (
    ConsumerConfig,
    ConsumerInfo,
    DeadLetter,
    PriorityPolicy,
    StreamConfig,
    StreamConsumerSource,
    StreamInfo,
    StreamSource,
)
from headrace.client.connection import Client, connect, jetstream
from headrace.client.consume import Messages
from headrace.client.consumed_message import ConsumedMessage
from headrace.client.consumer_reset import ConsumerReset
from headrace.client.context import JetStream
from headrace.client.key_value import KeyValue
from headrace.client.key_value_reader import KeyValueReader
from headrace.client.kv_config import BucketConfig, BucketStatus
from headrace.client.kv_entry import DecodedEntry, Entry, Operation
from headrace.client.message_errors import FailedMessage, MessagesNotStored
from headrace.client.outgoing_message import Message
from headrace.client.publisher import Publisher
from headrace.client.sourcing_consumer import source_through
from headrace.client.watch import Watcher

__all__ = [
    "MAX_MESSAGES",
    "Batch",
    "BatchAck",
    "BucketConfig",
    "BucketStatus",
    "Client",
    "Codec",
    "ConsumedMessage",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerReset",
    "DeadLetter",
    "DecodedEntry",
    "Entry",
    "FailedMessage",
    "JetStream",
    "KeyValue",
    "KeyValueReader",
    "Message",
    "Messages",
    "MessagesNotStored",
    "Operation",
    "PriorityPolicy",
    "Publisher",
    "StreamConfig",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamSource",
    "Watcher",
    "connect",
    "jetstream",
    "source_through",
]
