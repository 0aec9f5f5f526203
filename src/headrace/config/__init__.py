"""Configuration: the options of a server, and the parser and schema of configuration files."""

__all__: list[str] = []
