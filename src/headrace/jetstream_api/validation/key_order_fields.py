"""Validation of order per key: `max_ack_pending_per_subject` and `key_tokens`, which nats-server does not know."""

from headrace.jetstream_api.configs import ConsumerConfig
from headrace.jetstream_api.errors import invalid_config

#: Metadata with the same meaning, for clients whose types lack the fields.
LIMIT_METADATA = "headrace.max_ack_pending_per_subject"
TOKENS_METADATA = "headrace.key_tokens"

LIMIT_MAX = 1_000_000
_TOKEN_MAX = 255


def follow_metadata(config: ConsumerConfig, old: ConsumerConfig) -> None:
    """Drop the limit of an existing consumer, as clients read it, if the metadata of the request has another one."""
    limit = config.metadata.get(LIMIT_METADATA, "")
    if (
        limit
        and limit != old.metadata.get(LIMIT_METADATA, "")
        and (config.max_ack_pending_per_subject == old.max_ack_pending_per_subject)
    ):
        config.max_ack_pending_per_subject = 0


def apply_metadata(config: ConsumerConfig) -> None:
    """Set the fields from the metadata, unless they were sent."""
    limit = config.metadata.get(LIMIT_METADATA, "")
    if limit and not config.max_ack_pending_per_subject:
        if not (limit.isascii() and limit.isdigit() and len(limit) < len(str(LIMIT_MAX)) + 1):
            raise invalid_config(
                f"metadata {LIMIT_METADATA} must be a number from 0 to {LIMIT_MAX}, not {limit!r}"
            )
        config.max_ack_pending_per_subject = int(limit)
    config.key_tokens = config.key_tokens or config.metadata.get(TOKENS_METADATA, "")


def check_key_order(config: ConsumerConfig) -> None:
    """Reject combinations that do not work."""
    limit = config.max_ack_pending_per_subject
    if not 0 <= limit <= LIMIT_MAX:
        raise invalid_config(f"max_ack_pending_per_subject must be from 0 to {LIMIT_MAX}, not {limit}")
    if limit and config.ack_policy != "explicit":
        raise invalid_config("max_ack_pending_per_subject requires explicit acks")
    if not config.key_tokens:
        return
    if not limit:
        raise invalid_config("key_tokens requires max_ack_pending_per_subject")
    if config.deliver_policy == "last_per_subject":
        raise invalid_config("key_tokens can not be used with deliver policy last per subject")
    parts = config.key_tokens.split(",")
    if len(set(parts)) < len(parts) or not all(_is_position(part) for part in parts):
        raise invalid_config(
            f'key_tokens must be positions of tokens such as "2" or "1,3", not {config.key_tokens!r}'
        )


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and not text.startswith("0") and int(text[:4]) <= _TOKEN_MAX
