"""Validation of `dead_letter`, which nats-server does not know."""

from headrace._native.reserved_subjects import is_server_subject
from headrace.jetstream_api import names
from headrace.jetstream_api.configs import ConsumerConfig, DeadLetter, StreamConfig
from headrace.jetstream_api.errors import invalid_config
from headrace.protocol import subjects

MAX_DELIVER, TERM = "max_deliver", "term"
REASONS = (MAX_DELIVER, TERM)


def check_dead_letter(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Fill in the reasons, and reject what does not work."""
    wanted = config.dead_letter
    if wanted is None:
        return
    if config.ack_policy != "explicit":
        raise invalid_config("dead_letter requires explicit acks")
    subject = wanted.subject.encode()
    if not names.is_valid_subject(wanted.subject) or not subjects.is_literal(subject):
        raise invalid_config(f"the subject of dead_letter must be without wildcards, not {wanted.subject!r}")
    if is_server_subject(subject):
        raise invalid_config(
            f"the subject of dead_letter must not be one of the server's, such as {wanted.subject!r}"
        )
    if any(subjects.matches(pattern.encode(), subject) for pattern in stream.subjects):
        raise invalid_config(f"dead letters on {wanted.subject!r} would come back to the same stream")
    unknown = [reason for reason in wanted.on if reason not in REASONS]
    if unknown:
        raise invalid_config(f"dead_letter can be on {' and '.join(REASONS)}, not on {unknown[0]!r}")
    config.dead_letter = DeadLetter(subject=wanted.subject, on=sorted(set(wanted.on)) or list(REASONS))
