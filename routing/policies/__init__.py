"""Routing policies, one file each; `routing/registry.py` lists them."""
