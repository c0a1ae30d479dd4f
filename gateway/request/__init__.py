"""The steps of `gateway/lifecycle.py`, one file each, and the detours that a request may take from them."""
