"""Validation of single stream fields: defaults and errors, in nats-server's order.

Each function changes the copy that it gets. Where the TTL specification and nats-server differ, the specification wins
(`subject_delete_markers`).
"""

from headrace.jetstream_api import metadata, names
from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.jetstream_api.configs import RePublish, StreamConfig
from headrace.jetstream_api.errors import ApiError, invalid_config, pedantic_error
from headrace.jetstream_api.go_json_decoder import quote
from headrace.jetstream_api.subject_transform import BadTransform, check_transform, compile_transform
from headrace.jetstream_api.times import SECOND_NS, format_duration
from headrace.jetstream_api.validation import pattern_checks

#: A copy of a message must not be a request to the server: its creator may have no permission for that.
_SERVER_TOKENS = ("$JS", "$SYS")

REPLICAS_MAX = 5
DEFAULT_DUPLICATE_WINDOW = 120 * SECOND_NS
DEFAULT_MARKER_TTL = 900 * SECOND_NS
DURATION_MIN = SECOND_NS // 10
FIRST_SEQ_MAX = 1 << 61


def apply_field_defaults(config: StreamConfig, strict: bool, limits: JetStreamLimits) -> None:
    """Apply the rules before mirror and sources; with `strict`, reject silent corrections."""
    _check_names(config)
    _apply_count_defaults(config, strict)
    _check_age(config)
    _check_duplicate_window(config, strict, limits)
    if config.deny_purge and config.allow_rollup_hdrs:
        raise invalid_config("roll-ups require the purge permission")
    _check_counter(config)
    _check_discard(config)
    _check_markers(config, strict)
    _check_schedules(config, strict)
    _check_persistence(config)


def apply_republish_defaults(config: StreamConfig, strict: bool) -> None:
    """Apply the rules for transforms, republish and placement."""
    _check_transform(config)
    _check_republish(config, strict)
    _check_placement(config)


def _check_names(config: StreamConfig) -> None:
    if not names.is_valid_name(config.name):
        raise invalid_config("stream name is required and can not contain '.', '*', '>', '\\', '/'")
    if len(config.name.encode()) > names.NAME_MAX:
        raise invalid_config(f"stream name is too long, maximum allowed is {names.NAME_MAX}")
    if len(config.description.encode()) > names.DESCRIPTION_MAX:
        raise invalid_config(f"stream description is too long, maximum allowed is {names.DESCRIPTION_MAX}")
    check_metadata(config)


def check_metadata(config: StreamConfig) -> None:
    """Reject too much metadata."""
    if metadata.compute_size(config.metadata) > metadata.BYTES_MAX:
        raise invalid_config(f"stream metadata exceeds maximum size of {metadata.BYTES_MAX} bytes")


def _apply_count_defaults(config: StreamConfig, strict: bool) -> None:
    if config.first_seq > FIRST_SEQ_MAX:
        raise invalid_config(f"first sequence is too large, maximum allowed is {FIRST_SEQ_MAX}")
    config.num_replicas = config.num_replicas or 1
    if config.num_replicas > REPLICAS_MAX:
        raise invalid_config(f"maximum replicas is {REPLICAS_MAX}")
    if config.num_replicas < 0:
        raise ApiError.REPLICAS_COUNT_CANNOT_BE_NEGATIVE()
    for field in ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers"):
        value = getattr(config, field)
        if value < -1 and strict:
            raise pedantic_error(f"{field} must be set to -1")
        if value == 0 or value < -1:
            setattr(config, field, -1)


def _check_age(config: StreamConfig) -> None:
    if config.max_age < 0:
        raise invalid_config("max age can not be negative")
    if 0 < config.max_age < DURATION_MIN:
        raise invalid_config("max age needs to be >= 100ms")


def _check_duplicate_window(config: StreamConfig, strict: bool, limits: JetStreamLimits) -> None:
    cap = limits.server_duplicate_window
    if config.duplicate_window == 0 and config.mirror is None and not config.sources:
        config.duplicate_window = _default_duplicate_window(config, strict, cap)
    window = config.duplicate_window
    if window < 0:
        raise invalid_config("duplicates window can not be negative")
    if config.max_age and window > config.max_age:
        raise invalid_config("duplicates window can not be larger then max age")
    if 0 < cap < window:
        raise invalid_config(
            f"duplicates window can not be larger then server limit of {format_duration(cap)}"
        )
    if 0 < window < DURATION_MIN:
        raise invalid_config("duplicates window needs to be >= 100ms")


def _default_duplicate_window(config: StreamConfig, strict: bool, cap: int) -> int:
    window = DEFAULT_DUPLICATE_WINDOW
    if 0 < cap < window:
        if strict:
            raise pedantic_error("duplicate window limits are higher than current limits")
        window = cap
    if 0 < config.max_age < window:
        if strict:
            raise pedantic_error("duplicate window cannot be bigger than max age")
        return config.max_age
    return window


def _check_counter(config: StreamConfig) -> None:
    if not config.allow_msg_counter:
        return
    if config.discard == "new":
        raise invalid_config("counter stream cannot use discard new")
    # nats-server ignores that markers imply TTLs.
    markers = config.subject_delete_marker_ttl > 0 or bool(config.subject_delete_markers)
    if config.allow_msg_ttl or markers:
        raise invalid_config("counter stream cannot use message TTLs")
    if config.allow_msg_schedules:
        raise invalid_config("counter stream cannot use message schedules")
    if config.retention != "limits":
        raise invalid_config("counter stream can only use limits retention")


def _check_discard(config: StreamConfig) -> None:
    if not config.discard_new_per_subject:
        return
    if config.discard != "new":
        raise invalid_config("discard new per subject requires discard new policy to be set")
    if config.max_msgs_per_subject <= 0:
        raise invalid_config("discard new per subject requires max msgs per subject > 0")


def _check_markers(config: StreamConfig, strict: bool) -> None:
    """Check subject delete markers, requested by their TTL (nats-server) or by a flag (TTL specification)."""
    markers_flag = config.subject_delete_markers
    if markers_flag is False and config.subject_delete_marker_ttl > 0:
        raise invalid_config("subject delete marker TTL cannot be set if subject delete markers are disabled")
    if markers_flag and config.subject_delete_marker_ttl <= 0:
        if strict:
            raise invalid_config("subject delete marker TTL must be set")
        config.subject_delete_marker_ttl = DEFAULT_MARKER_TTL
    ttl = config.subject_delete_marker_ttl
    if ttl < 0:
        raise invalid_config("subject delete marker TTL must not be negative")
    if ttl == 0:
        return
    if ttl < SECOND_NS:
        raise invalid_config("subject delete marker TTL must be at least 1 second")
    if not config.allow_msg_ttl:
        if strict or markers_flag:
            raise invalid_config("subject delete marker cannot be set if message TTLs are disabled")
        config.allow_msg_ttl = True
    _require_rollup(config, strict, "subject delete marker")


def _require_rollup(config: StreamConfig, strict: bool, feature: str) -> None:
    if config.allow_rollup_hdrs:
        return
    if strict:
        raise invalid_config(f"{feature} cannot be set if roll-ups are disabled")
    config.allow_rollup_hdrs, config.deny_purge = True, False


def _check_schedules(config: StreamConfig, strict: bool) -> None:
    if not config.allow_msg_schedules:
        return
    if config.discard == "new":
        raise invalid_config("message scheduling cannot use discard new")
    _require_rollup(config, strict, "message scheduling")


def _check_persistence(config: StreamConfig) -> None:
    if config.persist_mode != "async":
        return
    if config.storage != "file":
        raise invalid_config("async persist mode is only supported on file storage")
    if config.num_replicas > 1:
        raise invalid_config("async persist mode is not supported on replicated streams")
    if config.allow_atomic:
        raise invalid_config("async persist mode is not supported with atomic batch publish")


def apply_subject_defaults(config: StreamConfig) -> None:
    """Set the subjects, by default the stream's name, and check them."""
    if not config.subjects:
        if config.mirror is None and not config.sources:
            config.subjects = [config.name]
        return
    pattern_checks.check_count(config.subjects, "subjects")
    seen: set[str] = set()
    for subject, overlap in pattern_checks.iter_overlaps(config.subjects):
        if not names.is_valid_subject(subject):
            raise invalid_config("invalid subject")
        if subject in seen:
            raise invalid_config("duplicate subjects detected")
        seen.add(subject)
        _check_reserved_subjects(subject, config)
        if overlap:
            raise invalid_config(f"subject {quote(subject)} overlaps with {quote(overlap)}")


def _check_reserved_subjects(subject: str, config: StreamConfig) -> None:
    if subject == ">" and config.num_replicas != 1 and config.no_ack:
        raise invalid_config("capturing all subjects requires replicas of 1")
    if config.no_ack:
        return
    if subject == ">":
        raise invalid_config("capturing all subjects requires no-ack to be true")
    for reserved in ("$JS.>", "$JSC.>", "$NRG.>"):
        if names.overlaps(subject, reserved) and not names.is_subset(subject, "$JS.EVENT.>"):
            raise invalid_config("subjects that overlap with jetstream api require no-ack to be true")
    if names.overlaps(subject, "$SYS.>") and not names.is_subset(subject, "$SYS.ACCOUNT.>"):
        raise invalid_config("subjects that overlap with system api require no-ack to be true")


def _check_transform(config: StreamConfig) -> None:
    transform = config.subject_transform
    if transform is None:
        return
    if transform.src and not names.is_valid_subject(transform.src):
        raise ApiError.STREAM_TRANSFORM_INVALID_SOURCE(err=f"invalid subject {transform.src}")
    try:
        check_transform(transform.src, transform.dest)
    except BadTransform as failure:
        raise ApiError.STREAM_TRANSFORM_INVALID_DESTINATION(err=failure) from None


def _check_republish(config: StreamConfig, strict: bool) -> None:
    if config.republish is None:
        return
    src, dest = config.republish.src, config.republish.dest
    if not src:
        if strict:
            raise pedantic_error("republish source can not be empty")
        src = ">"
    transform = config.subject_transform
    if src == dest == ">" and transform is not None and config.subjects == [transform.src]:
        # Republishing everything would feed the stream itself, unless stored messages have other subjects.
        if strict:
            raise pedantic_error("implicit republish based on subject transform")
        src = dest = transform.dest
    if any(names.overlaps(dest, subject) for subject in config.subjects):
        raise invalid_config("stream configuration for republish destination forms a cycle")
    if dest.split(".")[0] in _SERVER_TOKENS:
        raise invalid_config(f"stream configuration for republish destination '{dest}' belongs to the server")
    try:
        compile_transform(src, dest)
    except BadTransform:
        text = f"stream configuration for republish with transform from '{src}' to '{dest}' not valid"
        raise invalid_config(text) from None
    config.republish = RePublish(src=src, dest=dest, headers_only=config.republish.headers_only)


def _check_placement(config: StreamConfig) -> None:
    placement = config.placement
    if placement is None:
        return
    if placement.preferred:
        raise invalid_config("preferred server not permitted in placement")
    if not placement.cluster and not placement.tags:
        config.placement = None
