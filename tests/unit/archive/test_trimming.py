"""Which bases stay, and that a base of a server that was replaced does not count as the newest."""

from __future__ import annotations

from typing import Any

from headrace.archive.trimming import find_trim_plan
from headrace.backup.records import BackupRecord, ObjectRef


def make_record(epoch: int, group: int, moment_ns: int) -> BackupRecord:
    index = ObjectRef("0" * 64, 1, "a")
    return BackupRecord(
        f"{epoch}-{group}",
        moment_ns,
        "s",
        "1",
        index,
        0,
        0,
        0,
        0,
        0,
        moment_ns=moment_ns,
        epoch=epoch,
        group=group,
    )


class Log:
    def __init__(self, *records: BackupRecord) -> None:
        self._records = list(enumerate(records, start=1))

    def list_backups(self) -> list[tuple[int, BackupRecord]]:
        return self._records


def plan(oldest_ns: int, *records: BackupRecord) -> tuple[list[str], int]:
    log: Any = Log(*records)
    found = find_trim_plan(log, oldest_ns)
    return [each.id for each in found.retained], found.floor


def test_the_newest_base_before_the_window_stays_and_all_after_it() -> None:
    records = [make_record(1, 2, 10), make_record(1, 5, 20), make_record(2, 9, 30)]
    assert plan(5, *records) == (["1-2", "1-5", "2-9"], 2)
    assert plan(25, *records) == (["1-5", "2-9"], 5)
    assert plan(99, *records) == (["2-9"], 9)


def test_a_late_base_of_an_earlier_epoch_is_not_the_newest() -> None:
    records = [make_record(1, 2, 10), make_record(2, 9, 20), make_record(1, 7, 30)]
    assert plan(99, *records) == (["2-9", "1-7"], 7)
