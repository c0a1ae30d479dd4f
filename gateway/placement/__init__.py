"""Routing in one worker: the state of each pool, one request's placement, the load in flight, and decisions kept to be explained."""
