"""A pool revision gaining traffic: who gets it, how it compares with the one before it, and when it goes on or back. Pure.

`assignment` says who gets it, `samples` what is counted, `verdict` what the counts say, `progress` what follows of them under a `plan`.
Knows no request, store, pool or clock: counts and times are handed in.
"""
