"""Format features: an unknown one is rejected with advice and changes nothing; without any, older versions can read."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

import headrace
from headrace import __version__
from headrace.errors import StoreError, UnknownFeature
from headrace.sim import OUTCOMES_BY_NAME, SimDisk
from headrace.storage import FileDisk, format_features, open_store
from headrace.storage.checkpoint_schema import CheckpointRoot
from headrace.storage.format import PUT, encode_keyed_entry
from headrace.storage.snapshot import leases, manifest, offline_pin
from support.small_store import TINY, Ticking, commit, kill, open_small_store, opened

FEATURE = "segments/next"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A version with a feature, for the duration of a test."""
    with monkeypatch.context() as patch:
        patch.setattr("headrace.storage.format_features.KNOWN", frozenset({FEATURE, "facts/x"}))
        patch.setattr("headrace.storage.format_features.__version__", "9.8.7")
        yield


def fingerprint(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def fill(root: Path, *needed: str) -> str:
    """Create a store that needs features and close it; return the name of a pin."""
    with opened(root) as store:
        log = store.create("S")
        for number in range(200):
            log.append(b"s.%d" % (number % 3), b"", b"%d" % number * 20, 1)
        commit(store)
        for name in needed:
            store.checkpointer.require(name, lambda error: None)
            commit(store)
        return leases.create_pin(store, log, 1e9, 1).id


@pytest.fixture
def newer(tmp_path: Path) -> tuple[Path, str]:
    """A store that a newer version wrote, with a pin."""
    root = tmp_path / "headrace"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.storage.format_features.KNOWN", frozenset({FEATURE}))
        patch.setattr("headrace.storage.format_features.__version__", "9.8.7")
        pin = fill(root, FEATURE)
    return root, pin


def assert_helps(message: str) -> None:
    for word in (FEATURE, "9.8.7", __version__, "Upgrade", "Nothing was changed"):
        assert word in message


def test_a_store_without_features_has_a_root_that_older_versions_read(tmp_path: Path) -> None:
    """Their root was an array of eight elements; they skip later elements."""

    class OldRoot(msgspec.Struct, frozen=True, array_like=True):
        number: int
        frame: int
        next_ident: int
        streams: list[object]
        shards: list[object]
        damage: list[object]
        offline: list[object]
        kept: list[str]

    fill(tmp_path)
    newest = max((tmp_path / "checkpoints").glob("*.a"))
    data = newest.read_bytes()
    offset, length = struct.unpack_from("<QQ", data, len(data) - 48 + 24)
    root = data[offset : offset + length]
    assert msgspec.msgpack.decode(root, type=OldRoot).number == int(newest.stem, 16)
    assert msgspec.msgpack.decode(root, type=CheckpointRoot).writer == __version__
    with pytest.raises(msgspec.ValidationError):  # one with a feature stops them
        msgspec.msgpack.decode(format_features.encode_envelope(root, [FEATURE]), type=OldRoot)


def test_a_root_of_before_there_were_features_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old(data: bytes, names: frozenset[str]) -> bytes:
        found = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(found[:8]) if isinstance(found, list) else data

    monkeypatch.setattr("headrace.storage.format_features.encode_envelope", old)
    fill(tmp_path)
    monkeypatch.undo()
    with opened(tmp_path) as store:
        assert store.logs["S"].messages == 200
        assert (store.report().writer, store.report().features) == ("", [])


@pytest.mark.usefixtures("known")
def test_a_known_feature_is_kept_through_restarts(tmp_path: Path) -> None:
    fill(tmp_path, FEATURE)
    for _ in range(2):
        with opened(tmp_path) as store:
            assert store.checkpointer.features == {FEATURE}
            assert store.report().features == [FEATURE]
            assert store.logs["S"].messages == 200
        kill(open_small_store(tmp_path))


def test_a_feature_that_nobody_listed_cannot_be_required(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(StoreError, match="not in the list"):
        store.checkpointer.require("store/typo", lambda error: None)


@pytest.mark.usefixtures("known")
def test_a_feature_is_required_once_its_root_is_durable() -> None:
    """After a power loss at that moment, every reader of the disk finds the feature."""
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), TINY)
    store.create("S").append(b"s", b"", b"x", 1)
    commit(store)
    found: list[frozenset[str]] = []

    def lose_power(error: OSError | None) -> None:
        assert error is None
        found.append(open_store(disk.crash(OUTCOMES_BY_NAME["drop"]), Ticking(), TINY).checkpointer.features)

    store.checkpointer.require(FEATURE, lose_power)
    commit(store)
    assert found == [{FEATURE}]


def test_an_unknown_feature_is_refused_and_nothing_is_changed(newer: tuple[Path, str]) -> None:
    root, _ = newer
    before = fingerprint(root)
    for _ in range(2):
        disk = FileDisk(root)
        with pytest.raises(UnknownFeature) as refused:
            open_store(disk, Ticking(), TINY)
        disk.close()
        assert_helps(str(refused.value))
    assert fingerprint(root) == before


def test_an_older_checkpoint_is_no_way_around_a_feature(newer: tuple[Path, str]) -> None:
    root, _ = newer
    newest = max((root / "checkpoints").glob("*.a"))
    newest.write_bytes(b"")  # one copy is corrupt: the other still names it
    disk = FileDisk(root)
    with pytest.raises(UnknownFeature):
        open_store(disk, Ticking(), TINY)
    disk.close()


def test_a_server_says_so_and_can_be_started_elsewhere(newer: tuple[Path, str]) -> None:
    root, _ = newer
    before = fingerprint(root)

    async def start() -> None:
        async with headrace.Server(store_dir=root.parent):
            pass

    for _ in range(2):  # the lock is free again after the error
        with pytest.raises(UnknownFeature, match="headrace: the store uses") as refused:
            asyncio.run(start())
        assert_helps(str(refused.value))
    assert fingerprint(root) == before


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["serve", "-p", "-1", "-js", "-sd", "{parent}"], 1),
        (["fsck", "{root}"], 2),
        (["fsck", "{parent}"], 2),
        (["fsck", "{root}", "--json"], 2),
        (["fsck", "{root}", "--accept-loss"], 2),
    ],
    ids=lambda value: (
        "-".join(value[:1] + value[2:]).replace("{", "").replace("}", "") if isinstance(value, list) else None
    ),
)
def test_commands_say_so(newer: tuple[Path, str], command: list[str], code: int) -> None:
    root, _ = newer
    before = fingerprint(root)
    words = [word.format(root=root, parent=root.parent) for word in command]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *words], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == code, done.stderr
    assert_helps(done.stderr)
    assert "Traceback" not in done.stderr
    assert str(root) in done.stderr
    assert fingerprint(root) == before


def test_readers_without_a_broker_say_so(newer: tuple[Path, str]) -> None:
    root, pin = newer
    before = fingerprint(root)
    for read in (
        lambda: headrace.read(root, "S"),
        lambda: headrace.read(root, "S", pin=pin),
        lambda: offline_pin.pin_offline(root, "S", 60),
    ):
        with pytest.raises(UnknownFeature) as refused:
            read()
        assert_helps(str(refused.value))
    assert fingerprint(root) == before


def test_a_manifest_that_is_served_is_refused(newer: tuple[Path, str]) -> None:
    """Spark fetches the same bytes over HTTP, and decodes them here."""
    root, pin = newer
    data = (root / "pins" / pin / "manifest").read_bytes()
    with pytest.raises(UnknownFeature) as refused:
        manifest.decode(data, f"the manifest of {pin}")
    assert_helps(str(refused.value))
    assert data[:8] == b"HRpin002"  # versions without features report damage, and refuse too


@pytest.mark.usefixtures("known")
def test_pins_name_the_features_of_segments_only(tmp_path: Path) -> None:
    pin = fill(tmp_path, "facts/x")
    assert (tmp_path / "pins" / pin / "manifest").read_bytes()[:8] == b"HRpin001"
    assert headrace.read(tmp_path, "S", pin=pin).to_table().num_rows == 200


def test_a_pin_of_a_newer_version_is_not_swept(newer: tuple[Path, str], tmp_path: Path) -> None:
    root, pin = newer
    with opened(tmp_path / "other") as store:
        place = tmp_path / "other" / "pins" / pin
        place.mkdir(parents=True)
        (place / "manifest").write_bytes((root / "pins" / pin / "manifest").read_bytes())
        assert leases.sweep_expired(store, 1 << 62) == []


@pytest.mark.parametrize("what", ["frame", "entry", "reserved"])
def test_a_journal_with_something_unknown_is_refused(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passing over it would lose what was acknowledged."""
    store = open_small_store(tmp_path)
    store.create("S").append(b"s", b"", b"x", 1)
    commit(store)
    if what == "frame":
        monkeypatch.setattr("headrace.storage.store.COMMIT", 7)
        store.metadata.put(b"a", b"b")
    else:
        said = bytearray(encode_keyed_entry(PUT, b"a", b"b"))
        said[0 if what == "entry" else 2] = 200
        monkeypatch.setattr("headrace.storage.metadata_store.encode_keyed_entry", lambda *words: bytes(said))
        store.metadata.put(b"a", b"b")
    commit(store)
    kill(store)
    monkeypatch.undo()
    before = fingerprint(tmp_path)
    disk = FileDisk(tmp_path)
    with pytest.raises(UnknownFeature, match=r"a frame of kind 7|an entry of kind") as refused:
        open_store(disk, Ticking(), TINY)
    disk.close()
    assert __version__ in str(refused.value)
    assert fingerprint(tmp_path) == before


def test_a_cache_of_a_newer_version_is_rebuilt(tmp_path: Path) -> None:
    fill(tmp_path)
    for path in (tmp_path / "streams").rglob("*.col"):
        data = bytearray(path.read_bytes())
        data[:8] = b"HRcol002"
        struct.pack_into("<I", data, 68, crc32(data[:68]))
        path.write_bytes(data)
    with opened(tmp_path) as store:
        assert store.report().healthy
        assert [store.logs["S"].get(seq)[3] for seq in (1, 200)] == [b"0" * 20, b"199" * 20]


def test_facts_of_an_unknown_kind_are_kept(tmp_path: Path) -> None:
    """Metadata that a version does not know, and that no feature requires, is kept as it is."""
    with opened(tmp_path / "headrace") as store:
        store.metadata.put(b"future/1", b"value")
        store.metadata.merge(b"future/2", b"note")
        commit(store)

    async def serve() -> None:
        async with headrace.Server(store_dir=tmp_path):
            pass

    for _ in range(2):
        asyncio.run(serve())
    with opened(tmp_path / "headrace") as store:
        assert store.metadata.get(b"future/1") == b"value"
        assert store.metadata.get_operands(b"future/2") == [b"note"]
