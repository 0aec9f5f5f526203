"""The command line of `serve`: Go's rules, nats-server's names."""

import shlex
from pathlib import Path

import pytest

from headrace.cli.serve_flags import CONFIG_KEY, FLAGS, USAGE, Action, UsageError, parse
from headrace.config.options import LogFormat, OptionsError, option_names


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("", {}),
        ("-p 4223", {"port": 4223}),
        ("--p 4223", {"port": 4223}),
        ("-p=4223", {"port": 4223}),
        ("--port=-1", {"port": -1}),
        ("-p -1", {"port": -1}),
        ("-p 0x10", {"port": 16}),
        ("-a 127.0.0.1", {"host": "127.0.0.1"}),
        ("--addr ::1", {"host": "::1"}),
        ("-net=::", {"host": "::"}),
        ("-m 8222 -ms 8443", {"http_port": 8222, "https_port": 8443}),
        ("-n one", {"server_name": "one"}),
        ("--name one", {"server_name": "one"}),
        ("-server_name one", {"server_name": "one"}),
        ("-js", {"jetstream": True}),
        ("--jetstream=false", {"jetstream": False}),
        ("-js=T -sd=/tmp/x", {"jetstream": True, "store_dir": "/tmp/x"}),
        ("-sd /tmp/x", {"store_dir": "/tmp/x"}),
        ("--user a --pass b", {"user": "a", "password": "b"}),
        ("-auth t=x", {"token": "t=x"}),
        ("--auth=t=x", {"token": "t=x"}),
        ("-pass=", {"password": ""}),
        ("-DV", {"debug": True, "trace": True}),
        ("-D", {"debug": True}),
        ("-V", {"trace": True}),
        ("--debug --trace", {"debug": True, "trace": True}),
        ("-T=false --logtime_utc", {"log_time": False, "log_time_utc": True}),
        ("-l f", {"log_file": "f"}),
        ("--log f --log_format json", {"log_file": "f", "log_format": LogFormat.JSON}),
        ("-P f", {"pid_file": "f"}),
        ("--ports_file_dir d", {"ports_file_dir": "d"}),
        ("--tls --tlscert c --tlskey k", {"tls": True, "tls_cert": "c", "tls_key": "k"}),
        ("--tlsverify --tlscacert a", {"tls_verify": True, "tls_ca": "a"}),
        ("--allow_insecure", {"allow_remote_without_auth": True}),
        ("--max_payload 8 --max_pending 64MB", {"max_payload": 8, "max_pending": 64 << 20}),
        ("--ping_interval 300ms --ping_max 3", {"ping_interval_s": 0.3, "ping_max": 3}),
        ("--auth_timeout 2 --write_deadline 1.5", {"auth_timeout_s": 2.0, "write_deadline_s": 1.5}),
        ("--lame_duck_duration 30s", {"lame_duck_duration_s": 30.0}),
        ("--tls_handshake_first", {"tls_handshake_first": True}),
        ("-c f", {CONFIG_KEY: "f"}),
        ("--config=f", {CONFIG_KEY: "f"}),
        ("-p 1 -p 2", {"port": 2}),
        ("-p 1 --", {"port": 1}),
    ],
)
def test_flags_set_options(line: str, settings: dict[str, object]) -> None:
    understood = parse(shlex.split(line))
    assert understood.action is Action.RUN
    assert understood.settings == settings


def test_every_flag_sets_an_option_that_exists() -> None:
    assert {option for flag in FLAGS.values() for option in flag.options} <= option_names() | {CONFIG_KEY}


def test_the_usage_names_every_flag_that_works() -> None:
    words = USAGE.replace(",", " ").split()
    for name, flag in FLAGS.items():
        if (flag.options or flag.action) and name not in {"VV", "DVV", "help_tls"}:
            assert f"-{name}" in words or f"--{name}" in words, name


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("-v", Action.VERSION),
        ("--version", Action.VERSION),
        ("version", Action.VERSION),
        ("-h", Action.HELP),
        ("help", Action.HELP),
        ("-t", Action.CHECK),
        ("-p 1 -v", Action.VERSION),
        ("-sl stop=1", Action.SIGNAL),
        ("-v=false", Action.RUN),
    ],
)
def test_each_command_line_has_its_action(line: str, action: Action) -> None:
    assert parse(shlex.split(line)).action is action


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--prot 4222", "flag provided but not defined: -prot (did you mean -port?)"),
        ("--qqq", "flag provided but not defined: -qqq"),
        ("-p", "flag needs an argument: -p"),
        ("-p abc", 'invalid value "abc" for flag -p'),
        ("-js=maybe", 'invalid value "maybe" for flag -js'),
        ("--log_format xml", 'invalid value "xml" for flag -log_format'),
        ("--max_payload big", 'invalid value "big" for flag -max_payload'),
        ("--ping_interval 3x", 'invalid value "3x" for flag -ping_interval'),
        ("---p 1", "bad flag syntax: ---p"),
        ("-=1", "bad flag syntax: -=1"),
        ("start", 'unrecognized command: "start"'),
        ("-js true", 'unrecognized command: "true"'),
    ],
)
def test_what_is_not_understood(line: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(line))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--cluster nats://h:1", "cluster"),
        ("--cluster_listen nats://h:1", "cluster"),
        ("--cluster_name x", "cluster"),
        ("--routes nats://h:1", "cluster"),
        ("--no_advertise", "cluster"),
        ("-s", "stderr"),
    ],
)
def test_what_is_refused_says_why(line: str, word: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse(shlex.split(line))
    assert word in str(caught.value)
    assert not isinstance(caught.value, UsageError)


def test_flags_without_effect_are_mentioned() -> None:
    assert parse(["--profile", "6060", "-p", "1"]).warnings == ("-profile has no effect in Headrace",)


def test_flags_override_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "server.conf"
    file.write_text("port: 1\nserver_name: mill\nmqtt { port: 1 }\n")
    options, warnings = parse(["-c", str(file), "-p", "2", "--standalone"]).resolve()
    assert (options.port, options.server_name) == (2, "mill")
    assert warnings == (f"{file}:3:1: 'mqtt' has no effect in Headrace",)
