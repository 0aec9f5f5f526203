"""Moves streams between two JetStream servers: what the new server does differently, and the move itself.

The *old server* has the streams, the *new server* gets them; each can be Headrace or nats-server, so that moving back is
the same with the roles exchanged. Uses the JetStream API only. Must not know the command line. See ADR 65.
"""

__all__: list[str] = []
