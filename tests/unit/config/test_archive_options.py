"""The block `archive`: every wrong value has a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.config_parser import ConfigFileError
from headrace.config.options import OptionsError, from_keywords
from headrace.config.schema import load_config


def load(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.conf"
    path.write_text(f'jetstream {{ store_dir: "{tmp_path}", archive {{ {text} }} }}')
    from_keywords(**load_config(str(path), {}).settings).check()


def test_a_complete_block_is_accepted(tmp_path: Path) -> None:
    load(
        tmp_path,
        'url: "s3://bucket/prefix", ack: local, group_bytes: 4MiB, group_delay: 50ms, max_lag: 30s, keep: 7d',
    )


def test_remote_acknowledgements_are_accepted(tmp_path: Path) -> None:
    load(tmp_path, 'url: "s3://bucket/prefix", ack: remote')


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ack: local", "requires a url"),
        ('url: "ftp://x"', "invalid archive url"),
        ('url: "file://backups/one"', "with three slashes"),
        ('url: "file://"', "with three slashes"),
        ('url: "nats://a,b"', "use nats://HOST"),
        ('url: "nats://a/b/c"', "use nats://HOST"),
        ('url: "nats://u:p@a/S"', "credentials"),
        ('url: "s3://key:secret@bucket/x"', "never from the url"),
        ('url: "s3://b/p?endpoint=https://user:secret@host"', "never from the url"),
        ('url: "s3://b/p", ack: maybe', "use local or remote"),
        ('url: "s3://b/p", local_bytes: 5', "local_bytes is not supported yet"),
        ('url: "s3://b/p", group_bytes: 5', "group_bytes"),
        ('url: "s3://b/p", group_delay: 0s', "group_delay"),
        ('url: "s3://b/p", max_lag: 0s', "max_lag"),
        ('url: "s3://b/p", keep: 1s', "keep"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(OptionsError, match=reason):
        load(tmp_path, text)


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="unknown field 'colour'"):
        load(tmp_path, 'url: "s3://b/p", colour: 1')


def test_an_archive_needs_a_store_directory() -> None:
    from headrace.config.archive_options import ArchiveOptions

    with pytest.raises(OptionsError, match="store directory"):
        from_keywords(archive=ArchiveOptions("s3://b/p"), jetstream=True).check()
