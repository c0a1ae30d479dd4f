"""One worker's view of the fleet, kept current: which backends belong to it, whether they answer polls, whether they are healthy,
and the load and KV-cache contents that they report."""
