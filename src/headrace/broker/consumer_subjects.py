"""What a consumer listens to: pull requests, acknowledgements and flow-control answers, in both forms of server subjects."""

from __future__ import annotations

from headrace.api.names import short_hash


class Subjects:
    """The subjects of one consumer; `ack_keys` are what `kernel.ack_parts` finds in its acknowledgements."""

    __slots__ = ("ack_keys", "flow", "next")

    def __init__(self, stream: str, name: str, domain: str, account: str, *, flow_control: bool) -> None:
        plain = f"{stream}.{name}".encode()
        scoped = f"{domain or '_'}.{short_hash(account)}.".encode() + plain
        self.next = b"$JS.API.CONSUMER.MSG.NEXT." + plain
        self.ack_keys = (plain, scoped)
        self.flow = (b"$JS.FC.%s.*" % plain, b"$JS.FC.%s.*" % scoped) if flow_control else ()
