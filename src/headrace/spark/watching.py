"""The old name of `headrace.spark.lag_metrics`; importing it warns."""

from headrace.deprecation import warn_renamed
from headrace.spark.lag_metrics import LagListener as Lag
from headrace.spark.lag_metrics import compute_lag as lag_of
from headrace.spark.lag_metrics import watch

__all__ = ["Lag", "lag_of", "watch"]

warn_renamed(__name__, "headrace.spark.lag_metrics", stacklevel=3)
