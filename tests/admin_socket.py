"""The admin port of `tests.admin_harness` on a socket of its own, its loop in a thread: for commands and other clients that wait."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
from structlog.testing import capture_logs

from gateway.cli import admin_client, app
from tests.admin_harness import TOKEN, admin_port
from tests.command_line import Commands, Result
from tests.timing import hang_s


class AdminSocket:
    """A served admin port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(hang_s())

    async def _serve(self) -> None:
        async with admin_port(self._folder) as self.admin:
            config = uvicorn.Config(self.admin.app, port=0, lifespan="off", access_log=False, log_config=None)
            self._server = uvicorn.Server(config)
            self._loop = asyncio.get_running_loop()
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started:
                await asyncio.sleep(0.005)
            self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
            self._ready.set()
            await serving

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(hang_s())

    def within(self, work: Any) -> Any:
        """Await something in the port's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(hang_s())

    def run(self, *arguments: object, token: str = TOKEN) -> Result:
        """A command with `--admin`, as the bootstrap token or another caller."""
        environ = {"TIDEGATE_ADMIN_TOKEN": token, "COLUMNS": "200"}
        with patch.object(admin_client, "WITHIN_S", hang_s()):  # a busy machine is no gateway that hangs
            return Commands().invoke(app, [*map(str, arguments), "--admin", self.url], env=environ)

    def json(self, *arguments: object) -> Any:
        """What a command that succeeds prints with `--json`."""
        done = self.run(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@contextmanager
def admin_socket(folder: Path) -> Iterator[AdminSocket]:
    """Serve over a database in `folder`."""
    with capture_logs():  # the port is in this process, and its log would stand between what commands print
        made = AdminSocket(folder)
        try:
            yield made
        finally:
            made.close()
