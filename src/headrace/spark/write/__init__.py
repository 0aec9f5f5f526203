"""The Spark sink: rows become messages, stored exactly once."""
