"""The request log: `ring` and `capture` are the worker's part, `collector` the admin process's; `timeline` says where a request's time
went.
"""
