"""Subjects and patterns: tokens between dots, `*` for exactly one token, `>` for one or more at the end.

Everything here is a pure function of bytes. A published subject is accepted as it is: a token `*` or `>` in it is an
ordinary token, which equals the same character of a pattern or is matched by a wildcard (clients rely on that).
"""

STAR = b"*"
REST = b">"
_BLANKS = (b" ", b"\t", b"\r", b"\n", b"\x00")


def tokens(subject: bytes) -> list[bytes]:
    """Split a subject into tokens."""
    return subject.split(b".")


def is_well_formed(subject: bytes) -> bool:
    """Return whether no token is empty; a subject that is not well formed matches nothing."""
    return bool(subject) and subject[0] != 46 and subject[-1] != 46 and b".." not in subject


def is_valid(subject: bytes) -> bool:
    """Return whether a subject or pattern may be subscribed to: well formed, no blanks, `>` only at the end."""
    if not is_well_formed(subject) or any(blank in subject for blank in _BLANKS):
        return False
    return b">" not in subject or REST not in tokens(subject)[:-1]


def is_literal(subject: bytes) -> bool:
    """Return whether no token is a wildcard (`a*` and `a>` are ordinary tokens)."""
    if b"*" not in subject and b">" not in subject:
        return True
    return not any(token in (STAR, REST) for token in tokens(subject))


def is_valid_publish(subject: bytes) -> bool:
    """Return whether a pedantic server accepts publishing to it: well formed and without wildcards."""
    return is_well_formed(subject) and is_literal(subject)


def matches(pattern: bytes, subject: bytes) -> bool:
    """Return whether a pattern matches a subject whose tokens are all literal."""
    if pattern == subject:
        return is_well_formed(subject)
    if b"*" not in pattern and b">" not in pattern:
        return False
    return is_well_formed(subject) and match_tokens(tokens(pattern), tokens(subject))


def match_tokens(pattern: list[bytes], subject: list[bytes]) -> bool:
    """Like `matches`, for tokens already split; `subject` must be well formed."""
    last = len(pattern) - 1
    if pattern[last] == REST:
        if len(subject) < len(pattern):
            return False
    elif len(subject) != len(pattern):
        return False
    for token, theirs in zip(pattern, subject, strict=False):
        if token == REST:
            return True
        if token != STAR and token != theirs:
            return False
    return True


def overlaps(a: bytes, b: bytes) -> bool:
    """Return whether some subject matches both patterns."""
    left, right = tokens(a), tokens(b)
    for ours, theirs in zip(left, right, strict=False):
        if ours == REST or theirs == REST:
            return True
        if ours != theirs and STAR not in (ours, theirs):
            return False
    return len(left) == len(right)


def is_subset(a: bytes, b: bytes) -> bool:
    """Return whether every subject that pattern `a` matches is matched by pattern `b` too."""
    inner, outer = tokens(a), tokens(b)
    for position, theirs in enumerate(outer):
        if position >= len(inner):
            return False
        if theirs == REST:
            return True
        ours = inner[position]
        if ours == REST or (theirs != STAR and ours != theirs):
            return False
    return len(inner) == len(outer)
