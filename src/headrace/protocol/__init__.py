"""Bytes to meaning and back, without I/O: subjects, header blocks, the server's lines.

Knows nothing of connections, subscriptions or streams.
"""

from headrace.protocol import headers, server_lines, subjects

__all__ = ["headers", "server_lines", "subjects"]
