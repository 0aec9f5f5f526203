"""The vocabulary of the JetStream API: typed configurations, their rules, requests, answers, error table.

Pure functions and values: no streams, no sockets, no clock. What acts on streams lives in `headrace.broker`,
which imports these modules by name: `from headrace.jetstream_api import configs, responses`.
"""
