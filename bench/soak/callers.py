"""Callers that behave badly, each for a few seconds on a connection of its own."""

import asyncio
import contextlib
import json
import random
import socket
import struct

from bench.overhead.subjects import MODEL

SLOW_S = 12.0


def request(key: str, tokens: int = 256) -> bytes:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "go on " * 200}], "max_tokens": tokens, "stream": True}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def leaves(port: int, key: str, dice: random.Random) -> None:
    """Goes away somewhere between its first byte and the answer's last, politely or with a reset."""
    sent = request(key)
    cut = dice.choice((dice.randrange(1, len(sent)), len(sent), len(sent)))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent[:cut])
    with contextlib.suppress(TimeoutError, ConnectionError):
        await asyncio.wait_for(reader.read(dice.choice((1, 500, 5000))), dice.uniform(0.01, 1.5))
    if dice.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()


async def reads_slowly(port: int, key: str, dice: random.Random) -> None:
    """Reads a few bytes at a time and has room for little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    try:
        await loop.sock_sendall(sock, request(key, 2048))
        ends = loop.time() + SLOW_S
        while loop.time() < ends:
            with contextlib.suppress(TimeoutError):
                if not await asyncio.wait_for(loop.sock_recv(sock, 256), 1.0):
                    return
            await asyncio.sleep(0.25)
    except ConnectionError:
        pass
    finally:
        sock.close()
