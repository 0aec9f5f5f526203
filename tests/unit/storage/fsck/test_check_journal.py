"""fsck and the journal: a torn tail is not damage, a corrupt frame is, and a stream without its section is offline."""

import pytest

import headrace
from headrace.errors import StoreError
from headrace.storage import format as fmt
from headrace.storage.fsck.check import check, main
from support.pinned_store import Opened

from .test_check import flip, seqs


@pytest.fixture
def crashed(tmp_path):
    """Ten frames of ten messages each after the first, not closed."""
    opened = Opened(tmp_path)
    for _ in range(10):
        opened.append(10)
        opened.commit()
    opened.crash()
    return opened


def frames(root):
    """Return (path, offset, length) of each frame in the journal, in order of its number."""
    found = []
    for path in sorted((root / "journal").glob("*.jnl")):
        data = memoryview(path.read_bytes())
        for at in range(0, len(data), fmt.ALIGN):
            frame = fmt.parse_frame(data, at)
            if frame is not None and frame.kind == fmt.COMMIT:
                found.append((frame.number, path, at, fmt.FRAME_HEADER_BYTES + frame.length))
    return [each[1:] for each in sorted(found)]


def test_a_torn_last_frame_is_named_and_is_no_damage(crashed, tmp_path):
    path, at, length = frames(tmp_path)[-1]
    data = bytearray(path.read_bytes())
    data[at + length // 2 : at + length] = bytes(length - length // 2)
    path.write_bytes(data)
    assert not check(str(tmp_path)).clean  # the sync marker shows that it was synced
    (tmp_path / "journal/synced").write_bytes(b"")
    found = check(str(tmp_path))
    assert found.clean
    assert len(found.torn) == 1
    assert found.streams[0].last_seq == 90
    assert not list((tmp_path / "journal").glob("*.torn"))


def test_a_rotten_frame_costs_its_own_messages_and_is_never_dropped_unasked(crashed, tmp_path, capsys):
    path, at, length = frames(tmp_path)[-4]
    flip(path, at + length - 3)
    found = check(str(tmp_path))
    lost = {
        seq for each in found.damage if each.stream == "S" for seq in range(each.first_seq, each.last_seq + 1)
    }
    assert lost == set(range(61, 71))
    assert main(str(tmp_path)) == 1
    assert "lost sequences: 61 to 70" in capsys.readouterr().out
    rest = [seq for seq in range(1, 101) if seq not in lost]
    assert main(str(tmp_path), accept_loss=True) == 0
    kept = tmp_path / "lost/1" / str(path.relative_to(tmp_path)).replace("/", "+")
    assert kept.exists()
    assert seqs(tmp_path) == rest
    opened = Opened(tmp_path)
    assert opened.store.report().healthy
    assert opened.log.last_seq == 100
    opened.close()


def test_a_stream_without_its_section_is_offline_until_the_loss_is_accepted(tmp_path, capsys):
    opened = Opened(tmp_path)
    opened.append(5)
    opened.store.create("T").append(b"t", b"", b"payload of T", 1)
    opened.close()
    *older, first, second = sorted((tmp_path / "checkpoints").iterdir())
    for path in older:
        path.unlink()
    for path in (first, second):
        flip(path, path.read_bytes().index(b"payload of T"))
    found = check(str(tmp_path))
    assert list(found.offline) == ["T"]
    assert main(str(tmp_path)) == 1
    assert "OFFLINE stream T" in capsys.readouterr().out
    assert main(str(tmp_path), accept_loss=True) == 0
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]
    with pytest.raises(StoreError, match="no stream T"):
        headrace.read(tmp_path, "T")
