"""The configuration file: its syntax, errors with their position, and what a reload applies."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.client import EOF, Client, Wire
from conformance.servers import Server, Setup
from support.certificate_authority import Authority

Launch = Callable[[Setup], Server]
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


def enter(server: Server, **fields: str) -> Client:
    return Client(server.port, **fields)


class TestForms:
    @pytest.mark.parametrize(
        "text",
        [
            "authorization { user: a, password: b }",
            "authorization: { user: a, password: b }",
            "authorization = { user = a; password = b }",
            "authorization\n{\n  user: a\n  password: b\n}",
            'authorization { "user": "a", "pass": "b" }',
            "AUTHORIZATION { USER: a, Password: b }",
            "# a comment\nauthorization { // another\n user: a # and one more\n password: b }",
            "PASSWORD: b\nauthorization { user: a, password: $PASSWORD }",
            "authorization { users: [\n {user: a, password: b}\n {user: c, password: d}\n ] }",
            '{"authorization": {"user": "a", "password": "b"}}',
            "authorization { user: a, password: $2a$04$abcdefghijklmnopqrstuujwP3VNGFNQSuDrdd4PBkNVXBkVEJSvy }",
        ],
    )
    def test_a_user_may_be_written_in_every_form(self, launch: Launch, text: str) -> None:
        server = launch(Setup(config=text, jetstream=False))
        if "$2a$" in text:
            return  # it starts: a bare hash is not a variable
        with enter(server, user="a", **{"pass": "b"}) as client:
            client.flush()
        with Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"a","pass":"x"}\r\n')
            wire.expect_end(VIOLATION)

    def test_an_included_file_is_read(self, launch: Launch, tmp_path: Path) -> None:
        users = tmp_path / "users.conf"
        users.write_text("users: [{user: inc, password: x}]\n")

        class Beside(Server):
            def _command(self) -> list[str]:
                (self._folder / "users.conf").write_text(users.read_text())
                return super()._command()

        kind = launch.kind  # type: ignore[attr-defined]
        setup = Setup(config="authorization { include users.conf }", jetstream=False)
        with Beside(kind, setup) as server, enter(server, user="inc", **{"pass": "x"}) as client:
            client.flush()

    def test_sizes_and_durations(self, launch: Launch) -> None:
        text = (
            "max_payload: 64KB\nmax_control_line: 1k\nping_interval: '30s'\nping_max: 3\nwrite_deadline: 5s"
        )
        server = launch(Setup(config=text, jetstream=False))
        with Wire(server.port) as wire:
            assert wire.info["max_payload"] == 65536

    def test_names_and_tags(self, launch: Launch) -> None:
        server = launch(Setup(config="server_name: mine\nserver_tags: [a, 'b:c']", jetstream=False))
        with Wire(server.port) as wire:
            assert wire.info["server_name"] == "mine"


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("port: 4222\n\nnonsense: 1", 3),
            ("authorization {\n  user: a\n  passwort: b\n}", 3),
            ("accounts {\n A {\n  nonsense: 1\n }\n}", 3),
            ("jetstream {\n store_dyr: x\n}", 2),
            ("tls {\n cert: x\n}", 2),
            ("websocket {\n port: -1\n no_tsl: true\n}", 3),
            ("accounts { A {\n exports: [\n {stream: a, nonsense: b}\n]}}", 3),
        ],
    )
    def test_unknown_keys_are_named_with_their_line(self, launch: Launch, text: str, line: int) -> None:
        with pytest.raises(RuntimeError, match=rf"server\.conf:{line}:") as caught:
            launch(Setup(config=text, jetstream=False))
        assert "ended with 1" in str(caught.value)

    @pytest.mark.parametrize(
        "text",
        [
            "authorization { user: a, password: b",
            "port: $NOWHERE_TO_BE_FOUND",
            "accounts { A {users: [{user: x, password: x}]}, B {users: [{user: x, password: x}]} }",
            "accounts { A {}, B { imports: [{stream: {account: A, subject: x}}] } }",
            "accounts { A { exports: [{stream: x, accounts: [B]}] }, B {}, "
            "C { imports: [{stream: {account: A, subject: x}}] } }",
            "accounts { A { imports: [{stream: {account: B, subject: x}}] } }",
            "accounts { A { exports: [{service: x}], imports: [{service: {account: B, subject: x}}] }, "
            "B { exports: [{service: x}], imports: [{service: {account: A, subject: x}}] } }",
            "accounts { A { exports: [{service: x, response: sometimes}] } }",
            "no_auth_user: nobody\nauthorization { users: [{user: a, password: b}] }",
            "authorization { token: t, users: [{user: a, password: b}] }",
            "authorization { user: x, password: y, users: [{user: a, password: b}] }",
            "authorization { users: [{user: a, password: b, permissions: {publish: 'a..b'}}] }",
            "authorization { users: [{nkey: UNOTAKEY}] }",
            "operator: eyJnotatoken",
            "tls { cert_file: /nowhere.pem, key_file: /nowhere.key }",
            "include nowhere.conf",
            "max_payload: 128MB",
        ],
    )
    def test_what_makes_no_sense(self, launch: Launch, text: str) -> None:
        with pytest.raises(RuntimeError, match="ended with 1"):
            launch(Setup(config=text, jetstream=False))


class TestReload:
    def test_users_come_and_go(self, launch: Launch) -> None:
        one = "authorization { users: [{user: a, password: a}, {user: b, password: b}, {user: c, password: c}] }"
        two = "authorization { users: [{user: a, password: a}, {user: b, password: x}, {user: d, password: d}] }"
        server = launch(Setup(config=one, jetstream=False))
        a, b, c = (enter(server, user=name, **{"pass": name}) for name in "abc")
        server.reload(two)
        a.flush()
        assert b.frames(2)[-1] == EOF
        assert c.frames(2)[-1] == EOF
        with enter(server, user="d", **{"pass": "d"}) as client:
            client.flush()
        for client in (a, b, c):
            client.close()

    def test_permissions_change_for_those_who_are_there(self, launch: Launch) -> None:
        form = "authorization {{ users: [{{user: a, password: a, permissions: {{publish: {allowed}}}}}] }}"
        server = launch(Setup(config=form.format(allowed="one"), jetstream=False))
        with enter(server, user="a", **{"pass": "a"}) as client:
            client.errors.clear()
            client.publish("two")
            client.flush()
            assert len(client.errors) == 1
            server.reload(form.format(allowed="two"))
            client.publish("two")
            client.flush()
            assert len(client.errors) == 1

    def test_a_subscription_that_is_not_allowed_any_more_ends(self, launch: Launch) -> None:
        rules = "permissions: {{subscribe: {{deny: {denied}}}}}"
        form = f"authorization {{{{ users: [{{{{user: a, password: a, {rules}}}}}, {{{{user: b, password: b}}}}] }}}}"
        server = launch(Setup(config=form.format(denied="x"), jetstream=False))
        with (
            enter(server, user="a", **{"pass": "a"}) as client,
            enter(server, user="b", **{"pass": "b"}) as other,
        ):
            sid, stays = client.subscribe("secret"), client.subscribe("open")
            client.flush()
            server.reload(form.format(denied="secret"))
            for subject in ("secret", "open"):
                other.publish(subject, b"1")
            other.flush()
            assert client.pending(sid) == []
            assert len(client.pending(stays)) == 1

    def test_accounts_and_imports(self, launch: Launch) -> None:
        before = (
            "accounts { A { users: [{user: a, password: a}], exports: [{stream: s}] }, "
            "B { users: [{user: b, password: b}] } }"
        )
        after = before.replace(
            "B { users: [{user: b, password: b}] }",
            "B { users: [{user: b, password: b}], imports: [{stream: {account: A, subject: s}}] }, "
            "C { users: [{user: c, password: c}] }",
        )
        server = launch(Setup(config=before, jetstream=False))
        server.reload(after)
        with (
            enter(server, user="a", **{"pass": "a"}) as a,
            enter(server, user="b", **{"pass": "b"}) as b,
            enter(server, user="c", **{"pass": "c"}) as c,
        ):
            sids = [(b, b.subscribe("s")), (c, c.subscribe("s"))]
            b.flush()
            c.flush()
            a.publish("s", b"1")
            a.flush()
            assert [len(client.pending(sid)) for client, sid in sids] == [1, 0]

    def test_a_reload_takes_new_certificates(self, launch: Launch, tmp_path: Path) -> None:
        folders = [tmp_path / name for name in ("old", "new")]
        for folder in folders:
            folder.mkdir()
        old, new = (Authority(folder) for folder in folders)

        def config(authority: Authority) -> str:
            return f"tls {{ cert_file: '{authority.cert}', key_file: '{authority.key}' }}"

        server = launch(Setup(config=config(old), jetstream=False))
        with Wire(server.port) as wire:
            wire.start_tls(old.context())
        server.reload(config(new))
        with Wire(server.port) as wire:
            wire.start_tls(new.context())

    def test_a_mistake_changes_nothing(self, launch: Launch) -> None:
        good = "authorization { user: a, password: a }"
        server = launch(Setup(config=good, jetstream=False))
        (server._folder / "server.conf").write_text("authorization { user: a, password: a }\nnonsense: 1\n")
        server.signal(signal.SIGHUP)
        deadline = time.monotonic() + 90
        while "nonsense" not in server.log_text():
            assert time.monotonic() < deadline, server.log_text()
            time.sleep(0.01)
        with enter(server, user="a", **{"pass": "a"}) as client:
            client.flush()
