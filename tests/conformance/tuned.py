"""`headrace serve` with flags for settings that otherwise only a configuration file can express.

The reference gets these from a file; ours gets the same keys as flags until it reads files too (issue 10).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from headrace.cli import flags
from headrace.cli.serve import serve
from headrace.durations import duration_ns


def _seconds(text: str) -> float:
    return duration_ns(text.strip('"')) / 1e9


_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **{
        key: (key, int)
        for key in (
            "max_payload",
            "max_pending",
            "max_control_line",
            "max_connections",
            "max_subscriptions",
            "max_subscription_tokens",
            "ping_max",
        )
    },
    "ping_interval": ("ping_interval_s", _seconds),
    "write_deadline": ("write_deadline_s", _seconds),
    "lame_duck_duration": ("lame_duck_duration_s", _seconds),
    "lame_duck_grace_period": ("lame_duck_grace_s", _seconds),
}

if __name__ == "__main__":
    for _key, (_option, _read) in _KEYS.items():
        flags.FLAGS.setdefault(_key, flags.Flag(read=_read, sets=(_option,)))
    sys.exit(serve(sys.argv[1:]))
