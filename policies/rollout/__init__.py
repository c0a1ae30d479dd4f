"""Rollouts: a canary (a pool or a prompt version) gains traffic in steps and is compared with its baseline. Pure.

`assignment` chooses the requests of the canary, `samples` counts their outcomes, `verdict` compares the counts, and `progress` moves a
rollout forward or back under a `plan`. Knows no request, store, pool or clock: counts and times are handed in.
"""
