"""What the endpoint picker adds to a request, in latency: `make bench-picker`.

Requests go one after the other, and the ways take turns, so that they see the same machine: to the engine, through Envoy alone, through
Envoy that asks Tidegate's picker, and through Tidegate as the proxy. Two simulated engines answer at once. The processes share the machine
with whatever else runs there.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import yaml

from bench.overhead.processes import LOAD_CPU, running, start, wait_for
from bench.overhead.subjects import MODEL, tidegate
from bench.results_file import ROOT, Row, machine, percentile, refresh, table, write_rows
from tests.picker.test_envoy import envoy_config

ENVOY = ROOT / ".venv-picker" / "bin" / "envoy"
PORT = 23_000
CHAT = "/v1/chat/completions"
SIZES = {"1k": 1024, "16k": 16 * 1024}
MODES = ("FULL_DUPLEX_STREAMED", "BUFFERED")


@contextmanager
def envoy(home: Path, name: str, port: int, picker: int, engine: int, mode: str) -> Iterator[str]:
    """Envoy on `port`; without a mode it asks nobody, and sends all to the engine."""
    modes = {"request_body_mode": mode, "request_trailer_mode": "SEND" if mode != "BUFFERED" else "SKIP"} if mode else {}
    config = envoy_config({10000: port, 9002: picker, 8000: engine}, processing_mode=modes)
    if not mode:
        manager: Any = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["http_filters"][0]
    file = home / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    with running(start([str(ENVOY), "-c", str(file), *options], LOAD_CPU, home / f"{name}.log")):
        wait_for(f"http://127.0.0.1:{port}/up")
        yield f"http://127.0.0.1:{port}"


async def measured(ways: dict[str, tuple[str, str]], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of plain answers by way and size."""
    found: dict[tuple[str, str], list[float]] = {}
    clients = {name: httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) for name, (url, _) in ways.items()}
    for number in range(-20, rounds):  # the first ones open connections and are not counted
        for size, wanted in SIZES.items():
            for name, client in clients.items():
                text = f"{number} {name} " + "word " * (wanted // 5)
                body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
                headers = {"authorization": f"Bearer {ways[name][1]}"} if ways[name][1] else {}
                begun = time.perf_counter()
                (await client.post(CHAT, json=body, headers=headers)).raise_for_status()
                if number >= 0:
                    found.setdefault((name, size), []).append(time.perf_counter() - begun)
    for client in clients.values():
        await client.aclose()
    return found


def main() -> int:
    """Measure, and write the figures down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    given = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = []
        for at in range(2):
            command = [sys.executable, "-m", "backends.simengine", "--instant", "--model", MODEL, "--port", str(PORT + at)]
            stack.enter_context(running(start(command, LOAD_CPU, home / f"engine{at}.log")))
            engines.append(f"http://127.0.0.1:{PORT + at}")
            wait_for(f"{engines[-1]}/health")
        more = f"picker: {{bind: '127.0.0.1:{PORT + 20}', tenant: bench}}\n"
        gateway = stack.enter_context(tidegate(home, engines, PORT + 10, more=more))
        ways = {"engine": (engines[0], ""), "tidegate": (gateway.url, gateway.key)}
        for at, (name, mode) in enumerate({"envoy": "", **{f"envoy, picker {mode}": mode for mode in MODES}}.items()):
            ways[name] = (stack.enter_context(envoy(home, f"envoy{at}", PORT + 30 + at, PORT + 20, PORT, mode)), "")
        found = asyncio.run(measured(ways, given.rounds))
    rows = [
        Row(metric=f"ms_{word}_{size}", subject=name, value=round(1000 * percentile(seconds, share), 3), unit="ms", n=len(seconds))
        for (name, size), seconds in found.items()
        for word, share in (("median", 0.5), ("p90", 0.9))
    ]
    write_rows("picker", rows)
    shown = table(rows, list(dict.fromkeys(row["metric"] for row in rows)), "envoy")
    command_line = " ".join(["python -m bench.picker", *sys.argv[1:]])
    refresh("picker", f"`{command_line}`, {date.today()}, {machine()}; {given.rounds} requests each way, one at a time.\n\n{shown}")
    print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
