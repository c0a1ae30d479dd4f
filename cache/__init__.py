"""Answer cache: the key of a request, which requests and answers may be cached, the stored form of an answer, and its stores.

The lifecycle's step is `gateway/request/lookup.py`, the recorder of answers is a tap of the reply chain. `docs/explanation/cache.md` says
what is promised.
"""
