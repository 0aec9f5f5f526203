"""The parts of `bench/spark_kills.py`: cluster, driver, servers, ledger, and the moment of a kill."""
