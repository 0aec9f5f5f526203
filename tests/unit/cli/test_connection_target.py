"""How the server is chosen: flags, environment and contexts, and their precedence."""

import json
import stat
from pathlib import Path

import pytest

from headrace.cli import contexts
from headrace.cli.connection_target import DEFAULT_SERVER, resolve_target
from headrace.cli.exit_codes import CliError


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two contexts as the nats tool writes them; `prod` is selected."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    saved = tmp_path / "nats" / "context"
    saved.mkdir(parents=True)
    prod = {"url": "nats://prod:1", "token": "secret", "jetstream_domain": "hub", "color_scheme": "red"}
    (saved / "prod.json").write_text(json.dumps(prod))
    (saved / "lab.json").write_text('{"url": "nats://lab:2", "user": "ada", "password": "pw", "creds": ""}')
    (tmp_path / "nats" / "context.txt").write_text("prod\n")
    return tmp_path / "nats"


def test_without_anything_the_selected_context_is_used() -> None:
    target = resolve_target({}, {})
    assert (target.server, target.token, target.domain) == ("nats://prod:1", "secret", "hub")


def test_without_a_context_it_is_this_machine(folder: Path) -> None:
    (folder / "context.txt").unlink()
    assert resolve_target({}, {}).server == DEFAULT_SERVER


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ({"server": "nats://other:3"}, {}),
        ({}, {"NATS_URL": "nats://other:3"}),
        ({}, {"HEADRACE_URL": "nats://other:3", "NATS_URL": "nats://no:4"}),
    ],
)
def test_a_server_named_otherwise_gets_no_credentials_of_the_selected_context(
    flags: dict[str, str], environment: dict[str, str]
) -> None:
    target = resolve_target(flags, environment)
    assert (target.server, target.token) == ("nats://other:3", "")


def test_a_context_that_is_named_comes_before_the_environment() -> None:
    target = resolve_target({"context": "lab"}, {"NATS_URL": "nats://other:3", "NATS_USER": "bob"})
    assert (target.server, target.user, target.password) == ("nats://lab:2", "ada", "pw")


def test_a_context_of_the_environment_comes_after_the_other_variables() -> None:
    target = resolve_target({}, {"NATS_CONTEXT": "lab", "NATS_URL": "nats://other:3"})
    assert (target.server, target.user) == ("nats://other:3", "ada")


def test_flags_come_first() -> None:
    given = {"context": "lab", "user": "eve", "server": None, "timeout": 1.5}
    target = resolve_target(given, {"NATS_USER": "bob"})
    assert (target.server, target.user, target.timeout) == ("nats://lab:2", "eve", 1.5)


def test_several_servers_and_no_passwords_in_messages() -> None:
    target = resolve_target({"server": "nats://a:pw@one:1, nats://two:2"}, {})
    assert target.servers == ["nats://a:pw@one:1", "nats://two:2"]
    assert target.display_urls == "one:1, nats://two:2"


def test_the_error_names_a_missing_or_broken_context(folder: Path) -> None:
    with pytest.raises(CliError, match="context ls"):
        resolve_target({"context": "none"}, {})
    with pytest.raises(CliError, match="invalid context name"):
        resolve_target({"context": "../lab"}, {})
    (folder / "context" / "bad.json").write_text("[")
    with pytest.raises(CliError, match="cannot read context"):
        resolve_target({"context": "bad"}, {})
    (folder / "context" / "list.json").write_text("[]")
    with pytest.raises(CliError, match="does not contain a JSON object"):
        resolve_target({"context": "list"}, {})


def test_contexts_are_kept_for_their_owner_only(folder: Path) -> None:
    contexts.save("new", {"url": "nats://new:1", "token": "t"})
    file = folder / "context" / "new.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"url": "nats://new:1", "token": "t"}
    contexts.select("new")
    assert contexts.get_selected() == "new"
    contexts.remove("new")
    assert contexts.get_selected() == ""
    assert contexts.list_names() == ["lab", "prod"]


def test_a_target_becomes_client_options(tmp_path: Path) -> None:
    options = resolve_target({"context": "lab", "creds": "~/x.creds"}, {}).client_options()
    assert options == {
        "user": "ada",
        "password": "pw",
        "user_credentials": str(Path("~/x.creds").expanduser()),
    }
    assert resolve_target({}, {}).jetstream_options() == {"domain": "hub", "timeout": 5.0}
