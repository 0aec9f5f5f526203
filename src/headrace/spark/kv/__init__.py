"""The data source `headrace_kv`: key-value buckets as tables and change feeds."""

__all__: list[str] = []
