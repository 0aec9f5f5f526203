"""Warnings about an archive, for operators."""

from headrace.archive.archive_stats import ArchiveStats


def test_an_archive_that_has_stopped_is_reported_at_once() -> None:
    stats = ArchiveStats(0, 0, 0.0, 1, 5, 0, 1, 10, "frame 7 is missing", 30.0, has_stopped=True)
    assert stats.warning == "archiving has stopped: frame 7 is missing; restart the server"


def test_an_archive_is_late_beyond_max_lag() -> None:
    assert ArchiveStats(0, 0, 30.0, 1, 5, 0, 1, 10, "", 30.0).warning == ""
    remote = ArchiveStats(0, 0, 31.0, 1, 5, 0, 1, 10, "refused", 30.0, is_remote=True)
    assert remote.warning == "the archive is 31 s behind (max_lag 30 s), and publishers wait for it: refused"
    waiting = ArchiveStats(0, 0, 31.0, 1, 5, 0, 1, 10, "", 30.0, is_waiting=True)
    assert waiting.warning.endswith("and publishers wait for it")
    assert "31 s behind" in ArchiveStats(0, 0, 31.0, 1, 5, 0, 1, 10, "", 30.0).warning
