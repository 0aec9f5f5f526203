"""fsck reports the content of a store and its damage; only --accept-loss removes anything, and keeps it in lost/."""

import json
import subprocess
import sys

import pytest

import headrace
from headrace.errors import CorruptData
from headrace.storage.fsck.check import check, main
from support.pinned_store import Opened
from unit.storage.snapshot.test_offline_pin import fingerprint


@pytest.fixture
def filled(tmp_path):
    """Five hundred messages in several segments, closed cleanly."""
    opened = Opened(tmp_path)
    opened.append(300)
    opened.remove(60)
    opened.checkpoint()
    opened.append(200)
    opened.checkpoint()
    opened.close()
    return opened


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def seqs(root, **options):
    return headrace.read(root, "S", columns=["seq"], **options).to_table()["seq"].to_pylist()


def segment_files(root):
    return sorted((root / "streams").rglob("*.seg"))


def test_a_clean_store_is_described(filled, tmp_path, capsys):
    before = fingerprint(tmp_path)
    assert main(str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert f"stream S: {len(filled.model)} messages" in out
    assert "shut down cleanly" in out
    assert out.endswith("clean\n")
    assert fingerprint(tmp_path) == before


def test_json_says_the_same(filled, tmp_path, capsys):
    assert main(str(tmp_path), json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["streams"][0]["name"] == "S"
    assert found["streams"][0]["messages"] == len(filled.model)
    assert found["damage"] == []


def test_a_crash_is_no_damage(tmp_path):
    opened = Opened(tmp_path)
    opened.append(100)
    opened.commit()
    opened.crash()
    found = check(str(tmp_path))
    assert found.clean
    assert not found.shut_down_cleanly
    assert found.streams[0].messages == 100


def test_no_store_or_one_in_use_is_refused(tmp_path, capsys):
    assert main(str(tmp_path / "nothing")) == 2
    assert "there is no store in" in capsys.readouterr().err
    opened = Opened(tmp_path / "used")
    code = "import sys; from headrace.storage.fsck.check import main; sys.exit(main(sys.argv[1], accept_loss=True))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "used")], capture_output=True, text=True
    )
    assert (done.returncode, "in use" in done.stderr) == (2, True)
    opened.close()


def test_a_damaged_block_is_found_named_and_accepted(filled, tmp_path, capsys):
    path = segment_files(tmp_path)[0]
    flip(path, 700)
    before = fingerprint(tmp_path)
    assert main(str(tmp_path)) == 1
    assert "DAMAGE stream S: the block at 512 is damaged; lost sequences:" in capsys.readouterr().out
    assert fingerprint(tmp_path) == before
    (damage,) = check(str(tmp_path)).damage
    with pytest.raises(CorruptData):
        seqs(tmp_path)
    assert main(str(tmp_path), accept_loss=True) == 0
    rest = [seq for seq in sorted(filled.model) if not damage.first_seq <= seq <= damage.last_seq]
    assert seqs(tmp_path) == rest
    kept = tmp_path / "lost/1" / str(path.relative_to(tmp_path)).replace("/", "+")
    assert kept.read_bytes()[700] == path.read_bytes()[700] if path.exists() else kept.exists()
    assert json.loads((tmp_path / "lost/1/account.json").read_text())["damage"]
    opened = Opened(tmp_path)
    assert opened.store.report().healthy
    assert opened.store.report().unknown_files == []
    assert opened.log.last_seq == 500
    assert opened.store.metadata.get(b"loss/lost/1")
    opened.close()


@pytest.mark.parametrize("harm", ["missing", "short", "swapped"])
def test_a_segment_that_is_not_there_as_it_was_is_damage(filled, tmp_path, harm):
    first, second, *_ = segment_files(tmp_path)
    if harm == "missing":
        first.unlink()
    elif harm == "short":
        first.write_bytes(first.read_bytes()[:3000])
    else:
        a, b = first.read_bytes(), second.read_bytes()
        first.write_bytes(b)
        second.write_bytes(a)
    found = check(str(tmp_path))
    assert not found.clean
    lost = {seq for each in found.damage for seq in range(each.first_seq, each.last_seq + 1)}
    assert lost & set(filled.model)
    assert main(str(tmp_path), accept_loss=True) == 0
    assert seqs(tmp_path) == [seq for seq in sorted(filled.model) if seq not in lost]
    opened = Opened(tmp_path)
    assert opened.store.report().healthy
    opened.close()


def test_a_file_nobody_knows_is_left_and_named(filled, tmp_path):
    (tmp_path / "streams" / "notes.txt").write_text("mine")
    found = check(str(tmp_path))
    assert found.clean
    assert any("notes.txt" in name for name in found.unknown)


def test_accepting_what_is_clean_changes_nothing(filled, tmp_path):
    before = fingerprint(tmp_path)
    assert main(str(tmp_path), accept_loss=True) == 0
    assert fingerprint(tmp_path) == before


def test_a_store_without_any_good_checkpoint_is_kept_aside_whole(filled, tmp_path, capsys):
    for path in (tmp_path / "checkpoints").iterdir():
        flip(path, -5)
        flip(path, 3)
    for path in (tmp_path / "journal").iterdir():
        path.unlink()
    assert main(str(tmp_path)) == 1
    assert main(str(tmp_path), accept_loss=True) == 0
    assert segment_files(tmp_path / "lost/1") or list((tmp_path / "lost/1").rglob("*.seg"))
    opened = Opened(tmp_path)
    assert opened.store.report().healthy
    opened.close()
