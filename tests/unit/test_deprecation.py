"""Old names of the public API still work, and warn."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from importlib import import_module
from typing import Any

import pytest

from headrace import Server
from headrace.claims import ClaimConfig, ClaimProducer, Claims, Metrics, register_reader
from headrace.client import BucketConfig, Message, sync
from headrace.deprecation import RenamedAttribute, renamed_names, renamed_parameter

#: Module with the old name, the old name, and the new name.
NAMES = [
    ("headrace.errors", "Corrupt", "CorruptData"),
    ("headrace.errors", "Poisoned", "StorePoisoned"),
    ("headrace.errors", "Full", "StoreFull"),
    ("headrace.claims", "Consumer", "ClaimConsumer"),
    ("headrace.claims", "Producer", "ClaimProducer"),
    ("headrace.claims", "Report", "CollectReport"),
    ("headrace.claims", "NotFound", "ClaimNotFound"),
    ("headrace.claims", "Unavailable", "StoreUnavailable"),
    ("headrace.claims", "Disagreement", "ConfigConflict"),
    ("headrace.claims", "StoreError", "ObjectStoreError"),
    ("headrace.claims.consumer", "Consumer", "ClaimConsumer"),
    ("headrace.claims.producer", "Producer", "ClaimProducer"),
    ("headrace.claims.errors", "NotFound", "ClaimNotFound"),
    ("headrace.claims.errors", "Unavailable", "StoreUnavailable"),
    ("headrace.claims.errors", "Disagreement", "ConfigConflict"),
    ("headrace.claims.stores", "StoreError", "ObjectStoreError"),
    ("headrace.claims.stores", "BucketThere", "BucketAlreadyExists"),
    ("headrace.claims.stores", "ObjectThere", "ObjectAlreadyExists"),
    ("headrace.claims.stores", "Denied", "AccessDenied"),
    ("headrace.claims.stores", "Upload", "MultipartUpload"),
    ("headrace.claims.stores", "Plain", "StaticAttributes"),
    ("headrace.spark.jobs", "united", "read_with_tail"),
]
#: A class, the old name of a member, and the new one.
MEMBERS = [
    (Server, "hub", "router"),
    (Server, "leaf_port", "leafnode_port"),
    (Server, "leafs", "leafz_entries"),
    (Server, "page_url", "monitor_url"),
    (Server, "vitals", "stats"),
    (Claims, "wire", "jetstream"),
    (ClaimConfig, "published", "to_published"),
    (ClaimProducer, "deposit", "upload"),
    (ClaimProducer, "confirm", "confirm_published"),
    (ClaimProducer, "withdraw", "cancel"),
    (Metrics, "introduce", "init_labels"),
    (BucketConfig, "stream", "to_stream_config"),
    (Message, "wire_headers", "encode_headers"),
]
PARAMETERS = [(register_reader, "wire", "jetstream"), (sync.connect, "patience", "call_timeout")]
#: Old modules, the new ones, and the names that they had.
MODULES = [
    ("headrace.reading", "headrace.reader", {"Reading": "StreamScan", "read": "read", "read_kv": "read_kv"}),
    (
        "headrace.spark.watching",
        "headrace.spark.lag_metrics",
        {"Lag": "LagListener", "lag_of": "compute_lag", "watch": "watch"},
    ),
    (
        "headrace.spark.plots",
        "headrace.spark.svg_charts",
        {"bars": "bars", "lines": "lines", "number": "format_number", "COLOURS": "COLOURS"},
    ),
]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_an_old_name_is_the_new_thing(module: str, old: str, new: str) -> None:
    found = import_module(module)
    with pytest.warns(
        DeprecationWarning, match=rf"{module}\.{old} is deprecated: use {module}\.{new}$"
    ) as seen:
        assert getattr(found, old) is getattr(found, new)
    assert seen[0].filename == __file__, "the warning is about the line that uses the old name"
    exported = getattr(found, "__all__", [new])
    assert new in exported
    assert old not in exported, "a star import does not warn"


def test_an_import_statement_warns_where_it_stands() -> None:
    with pytest.warns(DeprecationWarning, match=r"headrace\.claims\.Report") as seen:
        exec(compile("from headrace.claims import Report", "user.py", "exec"), {"__name__": "user"})
    assert {warning.filename for warning in seen} == {"user.py"}


@pytest.mark.parametrize("module", sorted({module for module, _, _ in NAMES}))
def test_other_names_are_missing_as_ever(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        _ = import_module(module).Nothing


@pytest.mark.parametrize(("owner", "old", "new"), MEMBERS)
def test_an_old_member_is_the_new_one(owner: type, old: str, new: str) -> None:
    assert isinstance(inspect.getattr_static(owner, old), RenamedAttribute)
    stands_for = object()
    instance = object.__new__(type(owner.__name__, (owner,), {new: stands_for}))
    said = rf"^{owner.__name__}\.{old} is deprecated: use {owner.__name__}\.{new}$"
    with pytest.warns(DeprecationWarning, match=said) as seen:
        assert getattr(instance, old) is stands_for
    assert seen[0].filename == __file__


async def test_old_members_of_a_server() -> None:
    async with Server() as server:
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old: list[Any] = [
                server.hub,
                server.leaf_port,
                server.leafs(),
                server.page_url,
                server.vitals().port,
            ]
        new = [server.router, server.leafnode_port, server.leafz_entries(), server.monitor_url, server.port]
        assert old == new


def test_old_members_of_values() -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert BucketConfig(bucket="b").stream() == BucketConfig(bucket="b").to_stream_config()
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert Message("a", msg_id="1").wire_headers() == {"Nats-Msg-Id": "1"}
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert ClaimConfig("n").published() == ClaimConfig("n").to_published()


def test_an_old_attribute_can_be_set() -> None:
    class Thing:
        before = RenamedAttribute("after")

    thing: Any = Thing()
    with pytest.warns(DeprecationWarning, match=r"Thing\.before"):
        thing.before = 3
    assert thing.after == 3


@pytest.mark.parametrize(("function", "old", "new"), PARAMETERS)
def test_an_old_parameter_is_taken(function: Any, old: str, new: str) -> None:
    assert new in inspect.signature(function).parameters
    inner = inspect.unwrap(function)
    assert inner is not function
    seen: dict[str, Any] = {}
    taken = renamed_parameter(old, new)(lambda **given: seen.update(given))
    with pytest.warns(DeprecationWarning, match=rf"\({old}=\) is deprecated: use .*\({new}=\)"):
        taken(**{old: 1, "other": 2})
    assert seen == {new: 1, "other": 2}


async def test_register_reader_takes_its_old_keyword() -> None:
    class Silent:
        async def publish(self, subject: str, *_: Any) -> None:
            published.append(subject)

    published: list[str] = []
    reader: Any = register_reader
    with pytest.warns(DeprecationWarning, match=r"register_reader\(wire=\)"):
        await reader(wire=Silent(), stream="S", reader="r", acked=0)
    assert published == ["$CLAIMS.reader.S.r"]
    with pytest.raises(TypeError, match="both 'jetstream' and 'wire'"):
        await reader(wire=Silent(), jetstream=Silent(), stream="S", reader="r", acked=0)


async def test_connect_takes_its_old_keyword() -> None:
    connect: Any = sync.connect
    with (
        pytest.warns(DeprecationWarning, match=r"connect\(patience=\)"),
        pytest.raises(Exception, match=r"not connected|No servers|no servers|Connect"),
    ):
        connect("nats://127.0.0.1:1", connect_timeout=0.2, patience=1.0, max_reconnect_attempts=0)


@pytest.mark.parametrize(
    ("old", "new", "names"), MODULES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_old_module_warns_and_has_its_names(old: str, new: str, names: dict[str, str]) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=rf"^{old} is deprecated: use {new}$"):
        module = import_module(old)
    for name, now in names.items():
        assert getattr(module, name) is getattr(import_module(new), now)


def test_nothing_of_headrace_uses_an_old_name() -> None:
    """Headrace itself must not cause the warnings."""
    modules = "headrace.claims, headrace.client.sync, headrace.server, headrace.spark.jobs, headrace.reader, headrace.cli"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:headrace", "-c", f"import {modules}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_asked_for_elsewhere() -> None:
    get = renamed_names("here", {"old": "headrace.errors:HeadraceError"}, lambda name: name * 2)
    with pytest.warns(
        DeprecationWarning, match=r"here\.old is deprecated: use headrace\.errors\.HeadraceError"
    ):
        assert get("old").__name__ == "HeadraceError"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get("ab") == "abab"
