"""Builds one claim during its upload: what is known before the payload was read, and what is known after.

It decides nothing and sends nothing: it makes the object's attributes, the reference and the claim record from the same
figures, so that they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.claims import reference as references
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.reference import Reference
from headrace.claims.registry import ClaimEntry, make_entry
from headrace.claims.stores import StaticAttributes
from headrace.claims.streaming_upload import PayloadEncoder


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A payload being uploaded; `size` is None if it is known only at the end."""

    config: ClaimConfig
    subject: str
    claim_id: str
    key: str
    created_ns: int
    expires_at: int
    content_type: str
    size: int | None
    encoder: PayloadEncoder

    @property
    def attributes(self) -> StaticAttributes:
        tags = {"expires-at": str(self.expires_at)}
        return StaticAttributes(content_type=self.content_type, tags=tags, make_metadata=self.metadata)

    def metadata(self) -> dict[str, str]:
        """Metadata as complete as it can be when the store asks for it."""
        encoder = self.encoder
        details = {
            "original-size": encoder.original_size if encoder.is_finished else self.size,
            "checksum": encoder.checksum if encoder.is_finished else None,
        }
        return references.make_object_metadata(
            self.config.namespace, self.created_ns, encoder.compression, details
        )

    def make_reference(self) -> Reference:
        """Make the reference for the message; only after the whole payload was read."""
        encoder = self.encoder
        return Reference(
            self.claim_id,
            self.config.bucket,
            self.key,
            encoder.original_size,
            encoder.compression,
            encoder.checksum,
            encoder.stored_size,
            encoder.stored_checksum,
            self.created_ns // SECOND_NS,
            self.expires_at,
            self.content_type,
        )

    def make_entry(self) -> ClaimEntry:
        return make_entry(self.make_reference(), self.config.namespace, self.subject, self.created_ns)
