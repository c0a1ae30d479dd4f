"""The gateway: one request's life from the caller's socket to the engine's and back.

Start with `lifecycle.py`; each of its lines is a file in `request/`. Only `wiring/` builds adapters.
"""
