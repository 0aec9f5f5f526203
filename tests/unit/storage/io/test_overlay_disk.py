"""An overlay shows every change and writes none to the disk below."""

import pytest

from headrace.storage.io.overlay_disk import OverlayDisk


class Fixed:
    """A disk below with two files; anything but reading fails."""

    files = {"a/one": b"0123456789", "a/two": b"xyz", "top": b""}

    def list(self, folder):
        prefix = f"{folder}/" if folder else ""
        return sorted({p[len(prefix) :].split("/")[0] for p in self.files if p.startswith(prefix)})

    def exists(self, path):
        return path in self.files or any(p.startswith(path + "/") for p in self.files)

    def size(self, path):
        return len(self.files[path])

    def read(self, path, offset, length):
        return self.files[path][offset : offset + length]

    def map(self, path):
        return memoryview(self.files[path])

    def prefetch(self, path, offset, length):
        pass

    def free(self):
        return 7


@pytest.fixture
def disk():
    return OverlayDisk(Fixed())


def test_untouched_it_is_the_disk_beneath(disk):
    assert disk.list("") == ["a", "top"]
    assert disk.list("a") == ["one", "two"]
    assert disk.read("a/one", 2, 3) == b"234"
    assert bytes(disk.map("a/two")) == b"xyz"
    assert (disk.size("a/one"), disk.exists("a"), disk.exists("b")) == (10, True, False)
    assert disk.free() > 7, "what is written stays in memory"
    assert not disk.has_changes


def test_writes_show_and_may_overlap_and_grow(disk):
    disk.run([("write", "a/one", 8, [b"AB", b"CD"]), ("write", "a/one", 9, b"_"), ("sync", "a/one")])
    assert disk.read("a/one", 0, 100) == b"01234567A_CD"
    assert disk.read("a/one", 9, 2) == b"_C"
    assert disk.read("a/one", 50, 2) == b""
    assert bytes(disk.map("a/one")) == b"01234567A_CD"
    assert Fixed.files["a/one"] == b"0123456789"
    assert disk.has_changes


def test_new_files_and_folders_are_listed(disk):
    disk.run([("mkdir", "b"), ("create", "b/new", 4), ("write", "b/new", 1, b"!"), ("syncdir", "")])
    assert disk.list("") == ["a", "b", "top"]
    assert disk.list("b") == ["new"]
    assert disk.read("b/new", 0, 9) == b"\0!\0\0"
    with pytest.raises(FileExistsError):
        disk.run([("create", "b/new", 0)])
    with pytest.raises(FileExistsError):
        disk.run([("mkdir", "b")])


def test_removed_is_gone(disk):
    disk.run([("unlink", "a/one"), ("unlink", "a/two")])
    assert disk.list("a") == []
    assert not disk.exists("a/one")
    for look in (lambda: disk.size("a/one"), lambda: disk.read("a/one", 0, 1), lambda: disk.map("a/one")):
        with pytest.raises(FileNotFoundError):
            look()
    with pytest.raises(FileNotFoundError):
        disk.run([("unlink", "a/one")])
    disk.run([("rmdir", "a")])
    assert disk.list("") == ["top"]


def test_a_folder_with_files_stays(disk):
    with pytest.raises(OSError, match="not empty"):
        disk.run([("rmdir", "a")])


def test_links_share_and_renames_move(disk):
    disk.run([("link", "a/one", "a/three"), ("write", "a/three", 0, b"__"), ("rename", "a/two", "a/four")])
    assert disk.read("a/one", 0, 3) == b"__2"
    assert disk.list("a") == ["four", "one", "three"]
    assert disk.read("a/four", 0, 9) == b"xyz"
    with pytest.raises(FileExistsError):
        disk.run([("link", "a/one", "a/four")])


def test_copies_are_made(disk):
    disk.run([("create", "c", 0), ("copy", "a/one", 3, "c", 2, 4)])
    assert disk.read("c", 0, 9) == b"\0\x003456"


def test_a_link_to_an_untouched_file_is_mapped_not_copied(disk):
    disk.run([("mkdir", "p"), ("link", "a/one", "p/one")])
    assert disk.map("p/one").obj is Fixed.files["a/one"]
    disk.run([("write", "a/one", 0, b"_")])
    assert bytes(disk.map("p/one")) == b"_123456789"


def test_submissions_wait_for_the_drain(disk):
    called = []
    disk.submit("commit", [("write", "a/one", 0, b"!")], called.append)
    disk.submit("behind", [("unlink", "nothing"), ("unlink", "top")], called.append)
    assert disk.read("a/one", 0, 1) == b"0"
    disk.drain()
    assert disk.read("a/one", 0, 1) == b"!"
    assert called[0] is None
    assert isinstance(called[1], FileNotFoundError)
    assert disk.exists("top")


def test_closing_forgets_every_change(disk):
    disk.run([("unlink", "top")])
    disk.prefetch("a/one", 0, 1)
    disk.close()
    assert disk.exists("top")
