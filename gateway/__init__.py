"""The gateway: one request's life from the caller's socket to the engine's and back.

Start with `lifecycle.py`; `steps.py` holds what each line of it does, `wiring.py` is the only place that builds adapters.
"""
