"""Subject routing: sessions, the subscription index, permissions, subject mappings, exports and remote interest."""

__all__: list[str] = []
