"""Engines, seen from the gateway: how they speak, how to reach them, how they fail. Knows nothing of tenants or policies."""
