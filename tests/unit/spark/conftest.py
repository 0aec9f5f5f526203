"""Tests of the parts of the Spark data sources that need no Spark session; without pyspark they are skipped."""

import pytest

pytest.importorskip("pyspark")
