"""The options of a server inside this process: an object, or keywords with a few defaults of their own.

Owns these defaults. Must not know how options are read from files or command lines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.config.options import ANY_PORT, OptionsError, ServerOptions, from_keywords


def resolve_options(
    options: ServerOptions | None, store_dir: str | os.PathLike[str] | None, settings: dict[str, Any]
) -> ServerOptions:
    """Return the checked options that a program gave, either as an object or as keywords."""
    if options is None:
        settings.setdefault("port", ANY_PORT)
        if store_dir is not None:
            settings.setdefault("jetstream", True)
            settings["store_dir"] = str(Path(store_dir))
        options = from_keywords(**settings)
    elif settings or store_dir is not None:
        raise OptionsError("use either options=... or keyword settings, not both")
    options.check()
    return options
