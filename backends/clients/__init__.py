"""Adapters of the `Upstream` port: `relay` (ours, the default) and `aiohttp_client`. Only wiring may import them."""
