"""The caller's side of the relay: HTTP/1.1 on an `asyncio.Protocol`, and the taps a reply passes through.

`connection.py` is the only file with a transport in it; `exchange.py` is what the lifecycle sees of one request.
"""
