"""Authentication: users, NKeys, JWTs, certificates and operator mode."""

__all__: list[str] = []
