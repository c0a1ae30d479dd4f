"""Prefix matching, how much of a prompt each backend holds: prompt chains, the index over backends, KV events, and trust in each."""
