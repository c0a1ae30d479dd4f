"""Runs one client of Python in its own environment: `python run_program.py programs/NAME.py`, where this project is not importable.

A program has the functions `plain`, `stream`, `tool` and `structured`, and perhaps more; each takes a prompt and returns a value of JSON.
One line of JSON is printed for each. Every attempt to reach an address that is not of this machine is refused and reported, DNS included.
"""

import asyncio
import importlib.util
import inspect
import json
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

CASES = ("plain", "stream", "tool", "structured", "reasoning", "extras", "background")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
strangers: list[str] = []


def only_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse names and addresses of other machines; an audit hook sees every socket that Python opens, whichever library does."""
    if event == "socket.getaddrinfo" and arguments[0] not in (*LOOPBACK, None):
        host = str(arguments[0])
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple) and arguments[1][0] not in LOOPBACK:
        host = str(arguments[1][0])
    else:
        return
    strangers.append(host)
    raise socket.gaierror(f"a client wanted to reach {host}")


def main() -> None:
    sys.addaudithook(only_loopback)
    path = Path(sys.argv[1])
    spec = importlib.util.spec_from_file_location("client_program", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    sys.modules["client_program"] = program
    spec.loader.exec_module(program)
    for case in CASES:
        function = getattr(program, case, None)
        if function is None:
            continue
        try:
            prompt = f"({case}) Tell me about the harbour."
            value = asyncio.run(function(prompt)) if inspect.iscoroutinefunction(function) else function(prompt)
            print(json.dumps({"case": case, "value": value}), flush=True)
        except Exception:
            print(json.dumps({"case": case, "error": traceback.format_exc()}), flush=True)
    print(json.dumps({"case": "strangers", "value": strangers}), flush=True)


if __name__ == "__main__":
    main()
