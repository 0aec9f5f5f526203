"""Paths with and without a scheme."""

from __future__ import annotations

import pytest

from headrace.reader.options import OptionError
from headrace.spark.jobs.job_paths import join_path
from headrace.spark.jobs.landing import default_checkpoint


@pytest.mark.parametrize(
    ("target", "checkpoint"),
    [
        ("/lake/orders", "/lake/_orders.checkpoint"),
        ("/lake/orders/", "/lake/_orders.checkpoint"),
        ("orders", "_orders.checkpoint"),
        ("s3a://lake/orders", "s3a://lake/_orders.checkpoint"),
        ("s3a://lake/a/orders/", "s3a://lake/a/_orders.checkpoint"),
        ("hdfs:///lake/orders", "hdfs:///lake/_orders.checkpoint"),
    ],
)
def test_the_checkpoint_is_beside_the_table(target: str, checkpoint: str) -> None:
    assert default_checkpoint(target) == checkpoint


def test_a_whole_bucket_has_no_place_beside_it() -> None:
    with pytest.raises(OptionError, match="is a whole bucket"):
        default_checkpoint("s3a://lake")


def test_names_are_joined_to_any_folder() -> None:
    assert join_path("s3a://lake/audit/", "claims") == "s3a://lake/audit/claims"
    assert join_path("/audit", "report.html") == "/audit/report.html"
