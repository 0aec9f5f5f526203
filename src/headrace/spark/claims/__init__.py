"""Claims in Spark: the claim column, fetching payloads, reader leases."""
