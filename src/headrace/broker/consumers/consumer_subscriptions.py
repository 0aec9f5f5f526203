"""The subjects of a consumer: pull requests, acks and flow-control replies, with and without domain and account."""

from __future__ import annotations

from headrace.jetstream_api.names import short_hash


class ConsumerSubjects:
    """The subjects of one consumer; `ack_keys` are what `split_ack_subject` returns for its ack subjects."""

    __slots__ = ("ack_keys", "flow_subjects", "next_subject")

    def __init__(self, stream: str, name: str, domain: str, account: str, *, flow_control: bool) -> None:
        base = f"{stream}.{name}".encode()
        scoped = f"{domain or '_'}.{short_hash(account)}.".encode() + base
        self.next_subject = b"$JS.API.CONSUMER.MSG.NEXT." + base
        self.ack_keys = (base, scoped)
        self.flow_subjects = (b"$JS.FC.%s.*" % base, b"$JS.FC.%s.*" % scoped) if flow_control else ()
