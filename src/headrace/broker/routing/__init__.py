"""Subject routing: sessions, the subscription index, permissions, subject mappings, exports and remote interest."""
