"""Records: what decodes is what was written."""

import pytest

from headrace.backup import records
from headrace.backup.records import BackupRecord, ObjectRef, PruneRecord
from headrace.errors import BackupDamaged, BackupError

REF = ObjectRef("ab" * 32, 7, "0123456789ab")
BACKUP = BackupRecord("20261117T000000Z-1234", 5, "one", "1.0", REF, 1, 2, 3, 4, 5)
PRUNE = PruneRecord("x", 5, 3, REF)


@pytest.mark.parametrize("record", [BACKUP, PRUNE])
def test_a_changed_byte_is_found(record: BackupRecord | PruneRecord) -> None:
    data = records.encode_record(record)
    assert records.decode_record(data, "log/1") == record
    for at in range(len(data)):
        with pytest.raises(BackupError):
            records.decode_record(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "log/1")
    for cut in (data[:-1], data[:20], b"", data + b"x"):
        with pytest.raises(BackupDamaged):
            records.decode_record(cut, "log/1")


def test_a_newer_format_is_refused() -> None:
    data = records.encode_record(BACKUP).replace(b"headrace-backup-1", b"headrace-backup-2")
    with pytest.raises(BackupError, match="newer version"):
        records.decode_record(data, "log/1")


def test_names_are_parsed_strictly() -> None:
    assert records.parse_log_key(records.log_key(300)) == 300
    for key in ("log/12c", "log/x", "log/000000000000012C", "log/"):
        assert records.parse_log_key(key) == 0
    assert records.parse_object_key(REF.key, 7) == REF
    for key in ("objects/ab/x.y", REF.key.replace("objects/ab", "objects/cd"), REF.key.rpartition(".")[0]):
        assert records.parse_object_key(key, 7) is None
