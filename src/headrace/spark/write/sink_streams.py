"""The streams that a sink needs beside its target: progress and staged rows.

Owns their configurations, and creating them on the driver. Invariant: an existing stream is used as it is, so that an
administrator can create it with other settings. Must not know Spark. See ADR 59.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, ServerRejected
from headrace.reader.stream_admin import StreamError, StreamInfo, refuse, with_retry
from headrace.spark.write.acks import describe_error
from headrace.spark.write.write_target import WriteTarget, make_progress_filter, make_staging_filter

_NS = 1_000_000_000
_DUPLICATE_WINDOW_S = 120.0
_NOT_FOUND = 10059
_NAME_IN_USE = 10058


def ensure_sink_streams(target: WriteTarget, target_info: StreamInfo, expiries: tuple[float, float]) -> None:
    """Create the streams that do not exist; a stream with expiry 0 is not needed."""
    subjects = (make_progress_filter(target.stream), make_staging_filter(target.stream))
    names = (target.progress_stream, target.staging_stream)
    for name, subject, expiry_s in zip(names, subjects, expiries, strict=True):
        if expiry_s:
            config = _make_config(name, subject, expiry_s, target_info)
            ensure = partial(_ensure_stream, target=target, config=config)
            with_retry(target.address, target.reconnect_s, ensure)


def _make_config(name: str, subject: str, expiry_s: float, target_info: StreamInfo) -> dict[str, Any]:
    is_progress = name.startswith("SPARK_PROGRESS_")
    config: dict[str, Any] = {
        "name": name,
        "description": f"{'Progress' if is_progress else 'Staged rows'} of Spark's sink to {target_info.name}",
        "subjects": [subject],
        "storage": "file",
        "retention": "limits",
        "max_age": int(expiry_s * _NS),
        "duplicate_window": int(min(expiry_s, _DUPLICATE_WINDOW_S) * _NS),
        "num_replicas": target_info.config.get("num_replicas") or 1,
        "allow_direct": not is_progress,
        "max_msgs_per_subject": 1 if is_progress else -1,
    }
    if target_info.config.get("placement"):
        config["placement"] = target_info.config["placement"]
    return config


def _ensure_stream(connection: BlockingConnection, target: WriteTarget, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        info = json.loads(connection.request(f"{target.api_prefix}.STREAM.INFO.{name}").payload)
        if info.get("error", {}).get("err_code") == _NOT_FOUND:
            info = json.loads(connection.request(f"{target.api_prefix}.STREAM.CREATE.{name}", config).payload)
    except ServerRejected as error:
        raise StreamError(
            f"the sink needs stream {name!r} and may not create it: {error}. Create it with subject "
            f"{config['subjects'][0]}, or grant the permission"
        ) from error
    problem = info.get("error")
    if problem is not None and problem.get("err_code") != _NAME_IN_USE:
        failure = refuse(problem, f"stream {name!r} of the sink cannot be created")
        if isinstance(failure, StreamError):
            raise StreamError(
                f"the sink needs stream {name!r} with subject {config['subjects'][0]}, which cannot be created: "
                f"{describe_error(problem)}. Create it yourself, or set atLeastOnce=true, which needs none"
            )
        raise failure
