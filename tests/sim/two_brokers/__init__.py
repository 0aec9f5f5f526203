"""Two brokers over one archive, in virtual time: see `simulation.py`."""
