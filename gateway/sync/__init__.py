"""Refresh of shared state while the gateway serves: the directory of tenants and keys, and the policies."""
