"""Configurations: keys, defaults, presets, and errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.claims import (
    PRESETS,
    ClaimConfig,
    ConfigError,
    Ttl,
    from_mapping,
    load,
    load_all,
    preset,
)

SEED = """
namespace: video-processing

claim_check:
  enabled: true
  threshold: 1048576  # 1MB
  ttl:
    max_age: 86400
    delete_after_read: true
    retention_after_read: 300
    grace_period: 3600
"""


def test_the_seeds_example_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(SEED)
    assert load(path) == ClaimConfig("video-processing")
    assert Ttl() == Ttl(86400, True, 300, 3600)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("aggressive", (3600, True, 0, 300)),
        ("conservative", (86400, False, 0, 7200)),
        ("redelivery", (7200, True, 600, 600)),
    ],
)
def test_a_preset_sets_the_ttl_and_keys_override_it(name: str, values: tuple[Any, ...]) -> None:
    assert PRESETS[name] == Ttl(*values)
    assert preset(name, "ns").ttl == Ttl(*values)
    assert from_mapping({"namespace": "ns", "claim_check": {"preset": name}}).ttl == Ttl(*values)
    changed = from_mapping({"namespace": "ns", "claim_check": {"preset": name, "ttl": {"grace_period": 7}}})
    assert changed.ttl.grace_period == 7
    assert changed.ttl.max_age == values[0]


@pytest.mark.parametrize(
    ("check", "path"),
    [
        ({"threshold": "1MB"}, "claim_check.threshold"),
        ({"threshold": -1}, "claim_check.threshold"),
        ({"enabled": 1}, "claim_check.enabled"),
        ({"compression": "lz4"}, "claim_check.compression"),
        ({"backend": "tape"}, "claim_check.backend"),
        ({"bucket": ""}, "claim_check.bucket"),
        ({"treshold": 1}, "claim_check.treshold"),
        ({"preset": "lazy"}, "claim_check.preset"),
        ({"required": True, "enabled": False}, "claim_check.required"),
        ({"ttl": 5}, "claim_check.ttl"),
        ({"ttl": {"max_age": 0}}, "claim_check.ttl.max_age"),
        ({"ttl": {"max_age": True}}, "claim_check.ttl.max_age"),
        ({"ttl": {"max_age": 60}}, "claim_check.ttl.retention_after_read"),
        ({"ttl": {"max_age": 600}}, "claim_check.ttl.grace_period"),
        ({"ttl": {"max-age": 60}}, "claim_check.ttl.max-age"),
        ({"store": []}, "claim_check.store"),
        ({"store": {"pth": "claims"}}, "claim_check.store.pth"),
        ({"store": {"endpoint": "http://127.0.0.1:1"}}, "claim_check.store.endpoint"),
        ({"backend": "s3", "store": {"endpont": "http://127.0.0.1:1"}}, "claim_check.store.endpont"),
        ({"backend": "gcs", "store": {"account": "a"}}, "claim_check.store.account"),
        ({"backend": "azure", "store": {"access_key_id": "a"}}, "claim_check.store.access_key_id"),
        ({"backend": "memory", "store": {"path": "claims"}}, "claim_check.store.path"),
        ({"read_from": [{"store": {"pth": "claims"}}]}, "claim_check.read_from.0.store.pth"),
        (
            {"read_from": [{"backend": "s3", "store": {"path": "claims"}}]},
            "claim_check.read_from.0.store.path",
        ),
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_their_path(check: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_mapping({"namespace": "ns", "claim_check": check})
    assert raised.value.path == path
    assert str(raised.value).startswith(path)


def test_a_misspelt_setting_of_a_store_is_refused_with_the_known_ones() -> None:
    """Settings of a program are checked like those of a file, and the error shows no values."""
    with pytest.raises(ConfigError) as raised:
        ClaimConfig("ns", backend="s3", store={"secret_acces_key": "hush"})
    assert str(raised.value) == (
        "claim_check.store.secret_acces_key: unknown key of backend s3; known keys are access_key_id, connect_timeout, "
        "endpoint, region, retries, retry_timeout, secret_access_key, session_token, tags, timeout"
    )


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "*", "-a", "a" * 65, None, 5])
def test_namespaces_are_names(name: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        from_mapping({"namespace": name, "claim_check": {}})
    assert raised.value.path == "namespace"


def test_a_file_holds_several_namespaces(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("namespace: a\n---\nnamespace: b\nclaim_check: {preset: aggressive}\n")
    assert [config.namespace for config in load_all(path)] == ["a", "b"]
    assert load(path, "b").ttl == PRESETS["aggressive"]
    with pytest.raises(ConfigError, match="2 configurations"):
        load(path)
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "missing")


def test_what_is_published_holds_no_secret() -> None:
    config = ClaimConfig("ns", backend="s3", store={"secret_access_key": "hush"})
    assert "hush" not in str(config.to_published())
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    "check",
    [
        {"store": "hush"},
        {"store": ["hush"]},
        {"read_from": "hush"},
        {"read_from": {"store": {"secret_access_key": "hush"}}},
        {"read_from": ["hush"]},
        {"read_from": [{"store": "hush"}]},
        {"read_from": [{"backend": "hush"}]},
        {"read_from": [{"bucket": ["hush"]}]},
        {"bucket": {"store": "hush"}},
        [{"store": {"secret_access_key": "hush"}}],
    ],
)
def test_an_error_shows_no_secret(check: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping({"namespace": "ns", "claim_check": check})
    assert "claim_check" in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("text", ["key: 'hush", "key: *hush", "key: !hush x", "- key: hush", "key hush"])
def test_an_error_in_a_file_shows_no_secret(tmp_path: Path, text: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "hush" not in str(caught.value)


def test_the_backends_are_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"claim_check\.backend"):
        ClaimConfig("ns", backend="floppy")
    assert ClaimConfig("ns", backend="minio").lifecycle_days == 2, "whole days there as everywhere"
