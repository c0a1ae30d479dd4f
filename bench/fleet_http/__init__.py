"""Routers against each other over HTTP in real time, in front of simulated engines."""
