"""Tables: a stream is written to an Apache Iceberg table, each message once.

A worker reads what is new, writes data files, and commits them together with the position that they reach. Needs the
extra `headrace[tables]`: pyiceberg and pyarrow. Must not know the command line. See ADR 94.
"""

__all__: list[str] = []
