"""Sockets and what surrounds them: options, listeners, connections, TLS, authentication, logs."""
