"""The old name of `headrace.spark.svg_charts`; importing it warns."""

from headrace.deprecation import warn_renamed
from headrace.spark.svg_charts import COLOURS, HEIGHT, WIDTH, Series, bars, lines
from headrace.spark.svg_charts import format_number as number

__all__ = ["COLOURS", "HEIGHT", "WIDTH", "Series", "bars", "lines", "number"]

warn_renamed(__name__, "headrace.spark.svg_charts", stacklevel=3)
