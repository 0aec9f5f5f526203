"""Bytes to meaning and back, without I/O: subjects, header blocks, the server's lines.

Knows nothing of connections, subscriptions or streams.
"""

from headrace.protocol import frames, headers, subjects

__all__ = ["frames", "headers", "subjects"]
