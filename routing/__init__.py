"""Routing: pure deciders that rank backends for a request, from an immutable Fleet and this process's own load table.

`schedule.py` is the entry point; routing policies are one file each in `policies/`, listed in `registry.py`.
"""
