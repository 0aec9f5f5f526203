"""Tables whose stream was restored from an older state, and assigned sequences again, on both servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.client import Client
from conformance.servers import Server
from headrace.errors import PositionConflict, StreamReplaced
from headrace.tables.config import save_tables
from headrace.tables.inspection import TableStatus, fill_status
from headrace.tables.stream_range import StreamRangeReader
from support.table_landing import Landing, run_cli
from support.tables import read_seqs, reload

NAME = "ORDERS"


class RestoredLanding(Landing):
    """A stream whose server can be stopped."""

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, Client(server.port), NAME, folder)

    def stop(self) -> None:
        self.client.close()
        self.server.stop()

    def start(self) -> None:
        self.server.start()
        self.client = Client(self.server.port)

    def find_error(self) -> str:
        reader = StreamRangeReader(self.config, self.connection, NAME)
        try:
            return fill_status(TableStatus(NAME, NAME, ""), reload(self.config), reader).error
        finally:
            reader.close()


@pytest.fixture
def restored(fresh_server: Server, tmp_path: Path) -> Iterator[RestoredLanding]:
    """A table with six rows; then the server's folder went back to three messages, and got four others."""
    landing = RestoredLanding(fresh_server, tmp_path)
    copy = tmp_path / "copy"
    landing.client.api(
        f"STREAM.CREATE.{NAME}", {"name": NAME, "subjects": [f"{NAME}.>"], "allow_direct": True}
    )
    landing.make_table()
    landing.publish(3)
    landing.stop()
    shutil.copytree(fresh_server.store_dir, copy)
    landing.start()
    landing.publish(3)
    landing.land()
    landing.stop()
    shutil.rmtree(fresh_server.store_dir)
    shutil.copytree(copy, fresh_server.store_dir)
    landing.start()
    landing.publish(4)
    yield landing
    landing.client.close()


def test_sequences_that_were_assigned_again_stop_the_table(restored: RestoredLanding) -> None:
    with pytest.raises(StreamReplaced, match="another message with sequence 6 than the table"):
        restored.land()
    assert "another message with sequence 6" in restored.find_error()
    with pytest.raises(StreamReplaced, match="is not the default: name the last sequence"):
        restored.resync()
    with pytest.raises(PositionConflict, match=r"rows up to sequence 6: .*add --allow-duplicates"):
        restored.resync(3)
    assert read_seqs(restored.config) == list(range(1, 7))


def test_the_messages_of_the_restored_stream_are_written_on_request(restored: RestoredLanding) -> None:
    save_tables(restored.folder / "tables.yaml", {NAME: restored.config})
    arguments = ("resync", NAME, "--position", "3")
    assert run_cli(restored, *arguments)[0] != 0
    assert run_cli(restored, *arguments, "--allow-duplicates")[0] == 0
    assert restored.land().rows == 4
    assert read_seqs(restored.config) == [1, 2, 3, 4, 4, 5, 5, 6, 6, 7]
    assert restored.find_error() == ""


def test_a_last_message_that_was_deleted_does_not_stop_the_table(restored: RestoredLanding) -> None:
    """Nothing proves that the stream is another one."""
    restored.client.api(f"STREAM.MSG.DELETE.{NAME}", {"seq": 6})
    assert restored.land().rows == 1
    assert read_seqs(restored.config) == list(range(1, 8))
