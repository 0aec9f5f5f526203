"""Snapshots: leases on a stream's files, and reading them as Arrow from other processes."""
