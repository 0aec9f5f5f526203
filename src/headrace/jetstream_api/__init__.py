"""Types of the JetStream API: configurations and their validation, requests, responses, error table.

Pure functions and values: no streams, no sockets, no clock. `headrace.broker` acts on streams; it imports these modules
by name: `from headrace.jetstream_api import configs, responses`.
"""

__all__: list[str] = []
