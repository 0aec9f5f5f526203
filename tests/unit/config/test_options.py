"""Options: nats-server's defaults, contradictions are rejected, and no secret in a repr."""

import dataclasses

import pytest

from headrace.config.options import OptionsError, ServerOptions, User, from_keywords


def test_defaults_are_those_of_nats_server_except_for_the_address() -> None:
    options = ServerOptions()
    assert (options.host, options.port) == ("127.0.0.1", 4222)
    assert (options.max_payload, options.max_control_line, options.max_pending) == (1 << 20, 4096, 64 << 20)
    assert (options.max_connections, options.max_subscriptions) == (65536, 0)
    assert (options.ping_interval_s, options.ping_max, options.write_deadline_s) == (120.0, 2, 10.0)
    assert (options.auth_timeout_s, options.tls_timeout_s) == (2.0, 2.0)
    assert (options.lame_duck_duration_s, options.lame_duck_grace_s) == (120.0, 10.0)
    options.check()


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerOptions().port = 1  # type: ignore[misc]


def test_secrets_do_not_show() -> None:
    options = ServerOptions(user="u", password="s3cret", token="t0ken", users=(User("x", "hidden-one"),))
    for secret in ("s3cret", "t0ken", "hidden-one"):
        assert secret not in repr(options)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"port": 65536}, "port 65536"),
        ({"http_port": -2}, "http_port -2"),
        ({"max_payload": 0}, "invalid max_payload 0"),
        ({"max_subscriptions": -1}, "invalid max_subscriptions -1"),
        ({"max_payload": 100, "max_pending": 99}, "max_pending (99)"),
        ({"ping_interval_s": 0}, "invalid ping_interval_s 0"),
        ({"user": "u"}, "--pass"),
        ({"password": "p"}, "--user"),
        ({"token": "t", "user": "u", "password": "p"}, "token and users"),
        ({"tls": True}, "--tlscert"),
        ({"tls_cert": "c", "tls_key": "k", "tls_verify": True}, "--tlscacert"),
        ({"https_port": 1}, "https_port requires TLS"),
        ({"server_name": "two words"}, "two words"),
        ({"host": "0.0.0.0"}, "--allow_insecure"),
        ({"host": ""}, "all addresses"),
        ({"host": "::"}, "--allow_insecure"),
    ],
)
def test_contradictions_are_explained(settings: dict[str, object], word: str) -> None:
    with pytest.raises(OptionsError) as caught:
        from_keywords(**settings).check()
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0", "token": "t"},
        {"host": "0.0.0.0", "user": "u", "password": "p"},
        {"host": "0.0.0.0", "allow_remote_without_auth": True},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "127.0.0.5"},
        {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k", "tls_ca": "a", "tls_verify": True},
    ],
)
def test_other_addresses_need_authentication(settings: dict[str, object]) -> None:
    from_keywords(**settings).check()


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(OptionsError, match="'prot'"):
        from_keywords(prot=1)


def test_monitoring_listens_on_loopback_by_default() -> None:
    assert ServerOptions(host="0.0.0.0", token="t").monitoring_host == "127.0.0.1"
    assert ServerOptions(host="0.0.0.0", token="t", http_host="10.0.0.1").monitoring_host == "127.0.0.1"
    assert ServerOptions(host="0.0.0.0", allow_remote_without_auth=True).monitoring_host == "0.0.0.0"
    assert ServerOptions(host="127.0.0.2").monitoring_host == "127.0.0.2"
