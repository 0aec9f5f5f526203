"""Without a broker, the lock lets a reader make the manifest itself, and nothing on disk changes."""

import hashlib
import subprocess
import sys

import pytest

import headrace
from headrace.errors import StoreError
from support.pinned_store import NOW, Opened


def fingerprint(root):
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def rows_of(root):
    table = headrace.read(root, "S", columns=["seq", "subject", "data"]).to_table()
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def filled(tmp_path):
    opened = Opened(tmp_path)
    opened.append(300)
    opened.remove(100)
    opened.checkpoint()
    opened.append(200, size=300)
    opened.append(2, size=9000)
    opened.remove(50)
    opened.commit()
    return opened


@pytest.mark.parametrize("end", ["close", "crash"])
def test_a_store_at_rest_is_read_whole_and_not_changed(filled, end, tmp_path):
    rows = filled.rows()
    getattr(filled, end)()
    before = fingerprint(tmp_path)
    assert rows_of(tmp_path) == rows
    assert fingerprint(tmp_path) == before
    assert rows_of(tmp_path) == rows


def test_what_was_read_survives_the_broker_that_comes_later(filled, tmp_path):
    rows = filled.rows()
    filled.close()
    reading = headrace.read(tmp_path, "S", columns=["seq", "subject", "data"], views=True)
    later = Opened(tmp_path)
    later.log.remove_below(later.log.last_seq)
    later.append(500)
    later.checkpoint()
    later.checkpoint()
    assert [tuple(row.values()) for row in reading.to_table().to_pylist()] == rows
    later.close()


def test_a_store_in_use_is_not_read_behind_its_owners_back(filled, tmp_path):
    code = "import sys, headrace; headrace.read(sys.argv[1], 'S')"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "in use by another process" in done.stderr
    filled.close()


def test_the_error_for_an_unknown_stream_lists_those_that_exist(filled, tmp_path):
    filled.close()
    with pytest.raises(StoreError, match=r"no stream T .* its streams: S"):
        headrace.read(tmp_path, "T")


def test_expired_messages_are_left_out_as_of_now(tmp_path):
    opened = Opened(tmp_path)
    opened.append(5, ttl_s=1)
    opened.append(5, ttl_s=0xFFFFFFFF)
    opened.append(5)
    opened.close()
    assert NOW < 1_750_000_000 * 10**9
    assert [row[0] for row in rows_of(tmp_path)] == list(range(6, 16))
