"""What is refreshed while the gateway serves: the directory of tenants and keys, and the policies."""
