"""Headrace: durable streams that speak NATS/JetStream and feed Apache Spark."""

__version__ = "0.1.0"

#: The nats-server release whose behaviour clients may rely on; they gate features on it.
COMPATIBLE_VERSION = "2.15.1"
#: The JetStream API level served.
API_LEVEL = 5
