"""Format features: names in a store's root and in a pin's manifest that a reader must understand.

Owns the names that this version understands, and the envelope around a structure that needs some of them. Invariant: an
envelope with a name that is not in KNOWN is refused before anything in it is decoded. Must not know disks or logs.
See ADR 17.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from headrace import __version__
from headrace.errors import UnknownFeature

#: The features that this version reads and writes. A name has the form `<area>/<name>`; areas are `store` (journal and
#: checkpoints), `segments` (segment files, which pins share with readers in other processes) and `facts` (the broker's
#: metadata). Names are never removed or reused; docs/how-to/upgrade.md says when a change needs one.
KNOWN: frozenset[str] = frozenset({"segments/s2", "facts/id-blocks"})

#: The area whose features a reader of pins must understand.
SEGMENTS = "segments/"


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A structure that needs features.

    Its first element is a list, unlike that of any structure without an envelope, so that versions that do not know
    envelopes fail to decode it and stop.
    """

    features: list[str]
    writer: str
    body: msgspec.Raw


def encode_envelope(body: bytes, features: Iterable[str]) -> bytes:
    """Put msgpack bytes into an envelope if they need features; otherwise return them as they are."""
    names = sorted(features)
    return msgspec.msgpack.encode(_Envelope(names, __version__, msgspec.Raw(body))) if names else body


def decode_envelope(data: bytes, what: str) -> tuple[frozenset[str], bytes | msgspec.Raw]:
    """Return the features that some bytes need, and the bytes without their envelope.

    Raises UnknownFeature if this version lacks one of them; `what` names the bytes in the message.
    """
    try:
        envelope = msgspec.msgpack.decode(data, type=_Envelope)
    except msgspec.ValidationError:
        return frozenset(), data
    unknown = [name for name in envelope.features if name not in KNOWN]
    if unknown:
        raise UnknownFeature(
            refusal_message(what, f"the format feature {', '.join(unknown)}", envelope.writer)
        )
    return frozenset(envelope.features), envelope.body


@contextlib.contextmanager
def name_folder_in_errors(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix the message of an UnknownFeature with the folder: a server has a store for each account."""
    try:
        yield
    except UnknownFeature as error:
        raise UnknownFeature(f"{os.fspath(folder)}: {error}") from None


def refusal_message(what: str, needed: str, writer: str) -> str:
    """Return the error text: what cannot be read, which version wrote it, and what to upgrade."""
    wrote = f"Headrace {writer} wrote it" if writer else "a newer version wrote it"
    target = f"Headrace {writer} or later" if writer else "that version"
    return (
        f"{what} uses {needed}, which this version ({__version__}) does not know; {wrote}. "
        f"Upgrade this program to {target}. Nothing was changed"
    )
