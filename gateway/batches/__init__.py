"""Batches: requests in a file, which the gateway sends by itself while other requests leave room (docs/reference/batches.md)."""
