"""Accounts: separate subjects, streams and limits, imports and exports, and the system account."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from conformance.client import Client, Message, error_of
from conformance.consumer_client import eventually
from conformance.servers import Server, Setup

Launch = Callable[[Setup], Server]
Connect = Callable[..., Client]

CONFIG = """
accounts {
  A {
    users: [{user: a, password: a}]
    jetstream: enabled
    exports: [
      {stream: "news.>"}
      {stream: "for.b.>", accounts: [B]}
      {stream: "deliver.>"}
      {service: "add.>"}
      {service: "echo.*.*"}
      {service: "count.to", response: stream}
      {service: "pieces", response_type: chunked}
      {service: "secret", accounts: [B]}
      {service: "shared"}
      {service: "gone"}
      {service: "$JS.API.>", response: stream}
      {service: "$JS.ACK.>"}
    ]
  }
  B {
    users: [{user: b, password: b}]
    jetstream: enabled
    exports: [{service: "second"}]
    imports: [
      {stream: {account: A, subject: "news.>"}}
      {stream: {account: A, subject: "for.b.*.*"}, to: "mine.$2.$1"}
      {stream: {account: A, subject: "news.weather"}, to: "weather"}
      {stream: {account: A, subject: "deliver.>"}}
      {service: {account: A, subject: "add.one"}}
      {service: {account: A, subject: "echo.*.*"}, to: "say.$2.$1"}
      {service: {account: A, subject: "count.to"}}
      {service: {account: A, subject: "pieces"}}
      {service: {account: A, subject: "secret"}, to: "known"}
      {service: {account: A, subject: "shared"}, share: true}
      {service: {account: A, subject: "gone"}}
      {service: {account: A, subject: "$JS.API.>"}, to: "A.API.>"}
      {service: {account: A, subject: "$JS.ACK.>"}}
    ]
  }
  C {
    users: [{user: c, password: c}]
    imports: [
      {stream: {account: A, subject: "news.>"}, prefix: from.a}
      {service: {account: B, subject: "second"}, to: third}
    ]
  }
  LIMITED {
    users: [{user: l, password: l}]
    jetstream: {max_mem: 1000, max_file: 5000, max_streams: 2, max_consumers: 1}
  }
  $SYS { users: [{user: sys, password: sys}] }
}
authorization { users: [{user: g, password: g}] }
"""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=CONFIG, accounts=("A", "B", "LIMITED"))) as running:
        yield running


@pytest.fixture
def member(server: Server, connect: Connect) -> Callable[[str], Client]:
    """Connect as one of the users, who are named after their account, in lower case."""

    def open_client(user: str, **options: object) -> Client:
        return connect(server, **{"user": user, "pass": user, **options})

    return open_client


Member = Callable[..., Client]


def answer(client: Client, sid: str, payload: bytes = b"ok", reply: str = "") -> Message:
    """Wait for a request and reply to it; return the request."""
    request = client.next(sid)
    client.publish(request.reply, payload, reply=reply)
    client.flush()
    return request


class TestSubjects:
    def test_a_client_learns_its_account(self, member: Member) -> None:
        assert member("a").infos[-1]["remote_account"] == "A"
        assert member("g").infos[-1]["remote_account"] == "$G"
        info = member("sys").infos[-1]
        assert (info["remote_account"], info["acc_is_sys"]) == ("$SYS", True)

    def test_nothing_passes_by_itself(self, member: Member) -> None:
        a, b, g = member("a"), member("b"), member("g")
        sids = [(client, client.subscribe(">")) for client in (b, g)]
        for client, _ in sids:
            client.flush()
        a.publish("private.1", b"x")
        a.publish("$SYS.x", b"x")
        a.flush()
        assert all(client.pending(sid) == [] for client, sid in sids)

    def test_a_request_finds_no_responder_elsewhere(self, member: Member) -> None:
        a, g = member("a"), member("g")
        a.subscribe("service.here")
        a.flush()
        assert g.request("service.here").status == "503"

    def test_a_second_connect_changes_the_account(self, member: Member) -> None:
        client, a, b = member("a"), member("a"), member("b")
        sid = client.subscribe("moves")
        client.flush()
        client.send(b'CONNECT {"verbose":false,"user":"b","pass":"b"}\r\nSUB moves 77\r\n')
        client.flush()
        a.publish("moves", b"a")
        a.flush()
        b.publish("moves", b"b")
        b.flush()
        assert client.pending(sid) == []
        assert [message.payload for message in client.pending("77")] == [b"b"]


class TestStreamImports:
    def test_as_it_is(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = b.subscribe("news.*")
        b.flush()
        a.publish("news.today", b"1", reply="answer.here")
        a.publish("news.not.deep", b"2")
        a.publish("other", b"3")
        a.flush()
        [message] = b.pending(sid)
        assert (message.subject, message.payload, message.reply) == ("news.today", b"1", "answer.here")

    def test_a_prefix_is_put_before_imported_subjects(self, member: Member) -> None:
        a, c = member("a"), member("c")
        sid, plain = c.subscribe("from.a.news.>"), c.subscribe("news.>")
        c.flush()
        a.publish("news.x.y", b"1", {"K": "v"})
        a.flush()
        [message] = c.pending(sid)
        assert (message.subject, message.headers) == ("from.a.news.x.y", {"K": "v"})
        assert c.pending(plain) == []

    def test_with_tokens_exchanged(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = b.subscribe("mine.>")
        b.flush()
        a.publish("for.b.one.two", b"1")
        a.flush()
        assert [message.subject for message in b.pending(sid)] == ["mine.two.one"]

    def test_under_another_name(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid, everything = b.subscribe("weather"), b.subscribe(">")
        b.flush()
        a.publish("news.weather", b"rain")
        a.flush()
        assert [message.payload for message in b.pending(sid)] == [b"rain"]
        found = sorted(m.subject for m in b.pending(everything) if not m.subject.startswith("_INBOX"))
        assert found == ["news.weather", "weather"]

    def test_only_one_way(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("news.>")
        a.flush()
        b.publish("news.x", b"fake")
        b.flush()
        assert a.pending(sid) == []

    def test_a_queue_group_shares(self, member: Member) -> None:
        a, first, second = member("a"), member("b"), member("b")
        one, two = first.subscribe("news.q", "group"), second.subscribe("news.q", "group")
        first.flush()
        second.flush()
        for _ in range(20):
            a.publish("news.q", b"x")
        a.flush()
        assert len(first.pending(one)) + len(second.pending(two)) == 20

    @pytest.mark.ours_only("A queue group belongs to its account")
    def test_a_queue_group_does_not_reach_across(self, member: Member) -> None:
        a, b = member("a"), member("b")
        here, there = a.subscribe("news.both", "group"), b.subscribe("news.both", "group")
        a.flush()
        b.flush()
        for _ in range(10):
            a.publish("news.both", b"x")
        a.flush()
        assert (len(a.pending(here)), len(b.pending(there))) == (10, 10)

    def test_an_end_of_interest_is_noticed(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = b.subscribe("news.now")
        b.flush()
        a.publish("news.now", b"1", reply=a.inbox + ".x")
        a.flush()
        assert len(b.pending(sid)) == 1
        b.unsubscribe(sid)
        b.flush()
        assert a.request("news.now").status == "503"

    def test_a_stream_stores_what_is_imported(self, member: Member) -> None:
        a, b = member("a"), member("b")
        b.api("STREAM.CREATE.NEWS", {"name": "NEWS", "subjects": ["mine.*.*"]})
        a.publish("for.b.k.v", b"kept")
        a.flush()
        subjects = {"mine.v.k": 1}
        eventually(
            lambda: b.api("STREAM.INFO.NEWS", {"subjects_filter": ">"})["state"].get("subjects") == subjects
        )
        b.api("STREAM.DELETE.NEWS")

    def test_a_consumer_delivers_into_another_account(self, member: Member) -> None:
        a, b = member("a"), member("b")
        a.api("STREAM.CREATE.PUSHED", {"name": "PUSHED", "subjects": ["pushed.*"]})
        sid = b.subscribe("deliver.here")
        b.flush()
        config = {"durable_name": "d", "deliver_subject": "deliver.here", "ack_policy": "explicit"}
        a.api("CONSUMER.DURABLE.CREATE.PUSHED.d", {"stream_name": "PUSHED", "config": config})
        a.store("pushed.1", b"x")
        message = b.next(sid)
        assert (message.subject, message.payload) == ("pushed.1", b"x")
        b.publish(message.reply, b"+ACK", reply=b.inbox + ".ack")
        b.next("1")
        assert a.api("CONSUMER.INFO.PUSHED.d")["ack_floor"]["stream_seq"] == 1
        a.api("STREAM.DELETE.PUSHED")

    @pytest.mark.parametrize("group", ["", "workers"])
    def test_an_import_without_a_subscriber_is_no_interest(self, member: Member, group: str) -> None:
        """A push consumer waits until a client of the importing account subscribes, and stops when it leaves."""
        a, b = member("a"), member("b")
        a.api("STREAM.CREATE.WAITING", {"name": "WAITING", "subjects": ["waiting.*"]})
        config = {"durable_name": "d", "deliver_subject": "deliver.later", "ack_policy": "none"}
        config |= {"deliver_group": group} if group else {}
        a.api("CONSUMER.DURABLE.CREATE.WAITING.d", {"stream_name": "WAITING", "config": config})
        a.store("waiting.1", b"x")
        info = a.api("CONSUMER.INFO.WAITING.d")
        assert "push_bound" not in info
        assert info["delivered"]["stream_seq"] == 0
        sid = b.subscribe("deliver.later", group)
        assert b.next(sid).payload == b"x"
        assert a.api("CONSUMER.INFO.WAITING.d")["push_bound"] is True
        b.unsubscribe(sid)
        b.flush()
        eventually(lambda: "push_bound" not in a.api("CONSUMER.INFO.WAITING.d"))
        a.api("STREAM.DELETE.WAITING")


class TestServiceImports:
    def test_a_request_and_its_answer(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("add.*")
        a.flush()
        reply = b.ask("add.one", b"1", {"Mine": "x"})
        request = answer(a, sid, b"2")
        assert (request.subject, request.payload, request.headers["Mine"]) == ("add.one", b"1", "x")
        assert request.reply.startswith("_R_.")
        assert reply not in request.reply
        message = b.next("1")
        assert (message.subject, message.payload) == (reply, b"2")

    def test_an_import_may_reorder_subject_tokens(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("echo.>")
        a.flush()
        b.ask("say.two.one")
        assert answer(a, sid).subject == "echo.one.two"
        assert b.next("1").payload == b"ok"

    def test_request_info_names_the_importing_account(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("add.one")
        a.flush()
        b.ask("add.one")
        info = json.loads(answer(a, sid).headers["Nats-Request-Info"])
        assert {key: value for key, value in info.items() if key != "rtt"} == {"acc": "B"}

    def test_who_asks_in_detail(self, member: Member) -> None:
        a, b = member("a"), member("b", name="asker", lang="test", version="1.2")
        sid = a.subscribe("shared")
        a.flush()
        b.ask("shared")
        info = json.loads(answer(a, sid).headers["Nats-Request-Info"])
        assert (info["acc"], info["user"], info["name"]) == ("B", "b", "asker")
        assert (info["lang"], info["ver"], info["host"]) == ("test", "1.2", "127.0.0.1")

    def test_the_requester_cannot_be_forged(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("add.one")
        a.flush()
        b.ask("add.one", b"", {"Nats-Request-Info": '{"acc":"A","user":"admin"}', "K": "v"})
        request = answer(a, sid)
        assert request.header.count(b"Nats-Request-Info") == 1
        assert json.loads(request.headers["Nats-Request-Info"])["acc"] == "B"
        assert request.headers["K"] == "v"

    def test_a_service_without_responders_answers_503(self, member: Member) -> None:
        message = member("b").request("gone")
        assert message.status == "503"

    def test_one_answer_only(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("add.one")
        a.flush()
        b.ask("add.one")
        request = a.next(sid)
        a.publish(request.reply, b"1")
        a.publish(request.reply, b"2")
        a.flush()
        assert [message.payload for message in b.pending("1")] == [b"1"]

    @pytest.mark.parametrize("service", ["count.to", "pieces"])
    def test_many_answers_until_an_empty_one(self, member: Member, service: str) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe(service)
        a.flush()
        b.ask(service)
        request = a.next(sid)
        for payload in (b"1", b"2", b"3", b"", b"4"):
            a.publish(request.reply, payload)
        a.flush()
        assert [message.payload for message in b.pending("1")] == [b"1", b"2", b"3", b""]

    def test_a_private_service_is_closed_to_other_accounts(self, member: Member) -> None:
        a, b, c = member("a"), member("b"), member("c")
        sid = a.subscribe("secret")
        a.flush()
        b.ask("known")
        answer(a, sid, b"psst")
        assert b.next("1").payload == b"psst"
        assert c.request("secret").status == "503"

    def test_a_message_without_reply_reaches_the_service(self, member: Member) -> None:
        a, b = member("a"), member("b")
        sid = a.subscribe("add.one")
        a.flush()
        b.publish("add.one", b"note")
        b.flush()
        message = a.next(sid)
        assert (message.payload, message.reply) == (b"note", "")

    def test_requesters_see_only_their_own_answer(self, member: Member) -> None:
        a, b, snoop = member("a"), member("b"), member("b")
        sid, seen = a.subscribe("add.one"), snoop.subscribe("_R_.>")
        a.flush()
        snoop.flush()
        b.ask("add.one")
        answer(a, sid)
        b.next("1")
        assert snoop.pending(seen) == []

    def test_the_streams_of_another_account(self, member: Member) -> None:
        a, b = member("a"), member("b")
        a.api("STREAM.CREATE.THEIRS", {"name": "THEIRS", "subjects": ["theirs.*"]})
        for number in range(3):
            a.store(f"theirs.{number}", b"%d" % number)
        info = b.request("A.API.STREAM.INFO.THEIRS").json
        assert info["state"]["messages"] == 3
        body = {"stream_name": "THEIRS", "config": {"durable_name": "d", "ack_policy": "explicit"}}
        b.request("A.API.CONSUMER.DURABLE.CREATE.THEIRS.d", json.dumps(body).encode())
        reply = b.ask("A.API.CONSUMER.MSG.NEXT.THEIRS.d", b'{"batch":3,"expires":30000000000}')
        for number in range(3):
            message = b.next("1")
            assert (message.subject, message.payload) == (f"theirs.{number}", b"%d" % number)
            assert message.reply.startswith("$JS.ACK.")
            b.publish(message.reply, b"+ACK")
        assert reply
        b.flush()
        eventually(lambda: a.api("CONSUMER.INFO.THEIRS.d")["ack_floor"]["stream_seq"] == 3)
        a.api("STREAM.DELETE.THEIRS")


class TestStreams:
    def test_each_account_has_its_own(self, launch: Launch, connect: Connect) -> None:
        server = launch(Setup(config=CONFIG))
        users = {user: connect(server, **{"user": user, "pass": user}) for user in ("a", "b")}
        for user, client in users.items():
            client.api("STREAM.CREATE.SAME", {"name": "SAME", "subjects": ["same"]})
            for _ in range(2 if user == "a" else 3):
                client.store("same", user)
        server.restart(crash=True)
        for user, count in (("a", 2), ("b", 3)):
            client = connect(server, **{"user": user, "pass": user})
            assert client.api("STREAM.INFO.SAME")["state"]["messages"] == count
            assert client.request("$JS.API.DIRECT.GET.SAME", b'{"seq":1}').status in ("", "503")
            assert client.api("STREAM.MSG.GET.SAME", {"seq": 1})["message"]["subject"] == "same"
            assert client.api("STREAM.NAMES")["streams"] == ["SAME"]

    @pytest.mark.parametrize("user", ["c", "g"])
    def test_an_account_without_jetstream_is_refused(self, member: Member, user: str) -> None:
        client = member(user)
        for operation in ("INFO", "STREAM.NAMES", "STREAM.CREATE.X", "CONSUMER.NAMES.X"):
            assert error_of(client.api(operation)) == (10039, "JetStream not enabled for account")
        assert client.request("$JS.API.DIRECT.GET.X").status == "503"

    def test_limits_are_shown(self, member: Member) -> None:
        limits = member("l").api("INFO")["limits"]
        found = tuple(limits[key] for key in ("max_memory", "max_storage", "max_streams", "max_consumers"))
        assert found == (1000, 5000, 2, 1)

    def test_reserved_storage_stays_within_account_limits(self, member: Member) -> None:
        client = member("l")

        def create(name: str, **config: object) -> dict[str, object]:
            return client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], **config})

        assert error_of(create("X", max_bytes=5001))[0] == 10047
        assert error_of(create("X", max_bytes=1001, storage="memory"))[0] == 10028
        assert "error" not in create("ONE", max_bytes=3000)
        assert error_of(create("X", max_bytes=2001))[0] == 10047
        assert "error" not in create("TWO", max_bytes=2000)
        assert error_of(create("X"))[0] == 10027
        for name in ("ONE", "TWO"):
            client.api(f"STREAM.DELETE.{name}")

    def test_what_is_stored_counts(self, member: Member) -> None:
        client = member("l")
        config = {"name": "MEM", "subjects": ["mem"], "storage": "memory"}
        client.api("STREAM.CREATE.MEM", config)
        assert client.store("mem", b"x" * 600)["seq"] == 1
        ack = client.store("mem", b"x" * 600)
        assert error_of(ack) == (10002, "resource limits exceeded for account")
        assert client.store("mem", b"x" * 100)["seq"] == 2
        client.api("STREAM.DELETE.MEM")

    def test_consumers_beyond_the_account_limit_are_refused(self, member: Member) -> None:
        client = member("l")
        client.api("STREAM.CREATE.READ", {"name": "READ", "subjects": ["read"]})
        for name, good in (("one", True), ("two", False)):
            config = {"durable_name": name, "ack_policy": "explicit"}
            made = client.api(
                f"CONSUMER.DURABLE.CREATE.READ.{name}", {"stream_name": "READ", "config": config}
            )
            assert ("error" not in made) is good
        assert error_of(made)[0] == 10026
        client.api("STREAM.DELETE.READ")


class TestSystem:
    @pytest.mark.parametrize(("user", "account"), [("a", "A"), ("g", "$G"), ("sys", "$SYS")])
    def test_who_am_i(self, member: Member, user: str, account: str) -> None:
        told = member(user).request("$SYS.REQ.USER.INFO").json
        assert told["data"] == {"user": user, "account": account, "account_name": account}
        assert told["server"]["ver"] == "2.15.1"

    def test_the_server_answers_a_ping(self, member: Member) -> None:
        told = member("sys").request("$SYS.REQ.SERVER.PING").json
        assert told["statsz"]["connections"] >= 1
        ident = told["server"]["id"]
        again = member("sys").request(f"$SYS.REQ.SERVER.{ident}.STATSZ").json
        assert again["server"]["id"] == ident

    @pytest.mark.parametrize(
        ("page", "field"),
        [
            ("VARZ", "server_id"),
            ("CONNZ", "connections"),
            ("SUBSZ", "num_subscriptions"),
            ("JSZ", "streams"),
            ("HEALTHZ", "status"),
            ("ACCOUNTZ", "accounts"),
        ],
    )
    def test_the_system_account_reads_monitoring_pages(self, member: Member, page: str, field: str) -> None:
        told = member("sys").request(f"$SYS.REQ.SERVER.PING.{page}").json
        assert field in told["data"]

    def test_others_get_nothing(self, member: Member) -> None:
        assert member("a").request("$SYS.REQ.SERVER.PING").status == "503"
        assert member("a").request("$SYS.REQ.ACCOUNT.A.INFO").status == "503"

    def test_the_system_account_reads_info_of_an_account(self, member: Member) -> None:
        member("a")
        sys = member("sys")

        def told() -> tuple[int, int]:
            info = sys.request("$SYS.REQ.ACCOUNT.A.INFO").json["data"]
            assert (info["account_name"], info["jetstream_enabled"]) == ("A", True)
            connections = sys.request("$SYS.REQ.ACCOUNT.A.CONNZ").json["data"]
            return info["client_connections"], connections["num_connections"]

        eventually(lambda: told() == (1, 1))  # those of other tests end soon

    def test_connect_and_disconnect_events(self, member: Member) -> None:
        sys = member("sys")
        came, went = sys.subscribe("$SYS.ACCOUNT.C.CONNECT"), sys.subscribe("$SYS.ACCOUNT.C.DISCONNECT")
        sys.flush()
        guest = member("c", name="guest")
        told = sys.next(came).json
        assert told["type"] == "io.nats.server.advisory.v1.client_connect"
        assert (told["client"]["user"], told["client"]["acc"], told["client"]["name"]) == ("c", "C", "guest")
        guest.close()
        told = sys.next(went).json
        assert told["type"] == "io.nats.server.advisory.v1.client_disconnect"
        assert told["client"]["id"] > 0
