"""Authentication: users, NKeys, JWTs, certificates and operator mode."""
