"""Group commit and what surrounds it: timers, quotas, usage, disk back-pressure, advisories."""
