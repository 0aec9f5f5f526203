"""Encoding and parsing of the NATS protocol without I/O: subjects, header blocks, server lines.

Must not know connections, subscriptions or streams.
"""

from headrace.protocol import headers, server_lines, subjects

__all__ = ["headers", "server_lines", "subjects"]
