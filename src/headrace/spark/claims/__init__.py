"""Claims in Spark: the claim column, fetching payloads, reader leases."""

__all__: list[str] = []
