"""The request queue of each pool: requests wait here while no engine has capacity, in the order of `routing/fair_queue.py`."""
