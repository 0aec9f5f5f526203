"""A bucket's options as a stream's configuration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from nats.js import api

from headrace.client import BucketConfig
from headrace.client.errors import LimitMarkersPermanent
from headrace.client.kv_config import apply_changes, make_config, parse_bucket_name

SECOND = 1_000_000_000


def test_a_bucket_is_a_stream_with_the_kv_defaults() -> None:
    assert BucketConfig(bucket="B").to_stream_config() == {
        "name": "KV_B",
        "subjects": ["$KV.B.>"],
        "retention": "limits",
        "discard": "new",
        "max_msgs": -1,
        "max_consumers": -1,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "deny_purge": False,
        "allow_direct": True,
        "allow_atomic": False,
        "num_replicas": 1,
    }


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"history": 5}, {"max_msgs_per_subject": 5}),
        ({"limit_markers": "1h"}, {"allow_msg_ttl": True, "subject_delete_marker_ttl": 3600 * SECOND}),
        ({"limit_markers": timedelta(seconds=2)}, {"subject_delete_marker_ttl": 2 * SECOND}),
        ({"ttl": 60}, {"max_age": 60 * SECOND, "duplicate_window": 60 * SECOND}),
        ({"ttl": "24h"}, {"max_age": 86400 * SECOND, "duplicate_window": 120 * SECOND}),
        ({"storage": api.StorageType.MEMORY}, {"storage": "memory"}),
        ({"storage": "memory"}, {"storage": "memory"}),
        ({"compression": True}, {"compression": "s2"}),
        ({"compression": api.StoreCompression.NONE}, {"compression": "none"}),
        ({"max_bytes": 10, "max_value_size": 5}, {"max_bytes": 10, "max_msg_size": 5}),
        ({"metadata": {"a": "b"}}, {"metadata": {"a": "b"}}),
        ({"placement": api.Placement(tags=["x"])}, {"placement": {"tags": ["x"]}}),
        ({"republish": api.RePublish(src=">", dest="r.>")}, {"republish": {"src": ">", "dest": "r.>"}}),
        ({"mirror": "O"}, {"mirror": {"name": "KV_O"}, "mirror_direct": True}),
        ({"mirror": api.StreamSource(name="KV_O")}, {"mirror": {"name": "KV_O"}}),
        (
            {"sources": ["O"]},
            {
                "sources": [
                    {"name": "KV_O", "subject_transforms": [{"src": "$KV.O.>", "dest": "$KV.B.>"}]},
                ]
            },
        ),
        (
            {"sources": [api.StreamSource(name="O", filter_subject="$KV.O.a.*")]},
            {
                "sources": [
                    {"name": "KV_O", "subject_transforms": [{"src": "$KV.O.a.*", "dest": "$KV.B.a.*"}]},
                ]
            },
        ),
    ],
)
def test_bucket_options_become_stream_options(options: dict[str, Any], fields: dict[str, Any]) -> None:
    config = BucketConfig(bucket="B", **options).to_stream_config()
    assert {name: config[name] for name in fields} == fields


def test_a_mirror_has_no_subjects_of_its_own() -> None:
    assert "subjects" not in BucketConfig(bucket="B", mirror="O").to_stream_config()


@pytest.mark.parametrize("history", [0, 65, -1])
def test_history_has_bounds(history: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        BucketConfig(bucket="B", history=history).to_stream_config()


def test_short_markers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"limit_markers=0\.5"):
        BucketConfig(bucket="B", limit_markers=0.5).to_stream_config()


def test_the_words_of_nats_py() -> None:
    theirs = api.KeyValueConfig(bucket="B", history=3, ttl=10.0, limit_marker_ttl=2.0)
    ours = BucketConfig(bucket="B", history=3, ttl=10.0, limit_markers=2.0)
    assert make_config(theirs, {}) == ours
    assert make_config(None, {"bucket": "B", "history": 3, "ttl": 10.0, "limit_marker_ttl": 2.0}) == ours
    assert make_config(theirs, {"history": 4}).history == 4


class TestChanges:
    now: dict[str, Any] = {"name": "KV_B", "max_age": 0, "subject_delete_marker_ttl": SECOND, "new_field": 1}

    def test_other_fields_stay(self) -> None:
        assert apply_changes(self.now, {"history": 2}) == {**self.now, "max_msgs_per_subject": 2}

    def test_markers_can_be_changed(self) -> None:
        assert apply_changes(self.now, {"limit_markers": 5})["subject_delete_marker_ttl"] == 5 * SECOND

    @pytest.mark.parametrize("nothing", [None, 0])
    def test_markers_cannot_be_disabled(self, nothing: object) -> None:
        with pytest.raises(LimitMarkersPermanent, match="'B'"):
            apply_changes(self.now, {"limit_markers": nothing})
        assert apply_changes({"name": "KV_B"}, {"limit_markers": nothing})["subject_delete_marker_ttl"] == 0

    def test_an_unknown_option_is_named(self) -> None:
        with pytest.raises(TypeError, match="histori"):
            apply_changes(self.now, {"histori": 2})


def test_bucket_names_come_from_stream_names() -> None:
    assert (parse_bucket_name("KV_a"), parse_bucket_name("ORDERS")) == ("a", None)
