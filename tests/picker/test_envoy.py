"""A real Envoy asks Tidegate's endpoint picker where requests go (`make test-picker`). Its configuration is that of docs/reference/picker.md."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import SETTINGS, serving
from tests.engines.processes import ROOT, free_port, start, stopping
from tests.timing import HANG_S

pytestmark = pytest.mark.client

PICKER = ROOT / ".venv-picker"
PAGE = ROOT / "docs/reference/picker.md"
SIM = SimSettings(models=("sim",), speed=20)


def envoy_config(ports: dict[str, int], **changed: Any) -> dict[str, Any]:
    """The page's configuration with other ports, and further values of the filter."""
    text = re.findall(r"```yaml\n(static_resources:.*?)```", PAGE.read_text(), re.S)[0]
    for known, port in ports.items():
        text = text.replace(f"port_value: {known}", f"port_value: {port}")
    config: dict[str, Any] = yaml.safe_load(text)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    processor = manager["http_filters"][0]["typed_config"]
    processor["processing_mode"].update(changed.pop("processing_mode", {}))
    processor.update(changed)
    return config


@asynccontextmanager
async def envoy(home: Path, ports: dict[str, int], **changed: Any) -> AsyncIterator[str]:
    assert (PICKER / ".made").exists(), f"{PICKER.name} is not there or not complete; run `make test-picker`"
    (home / "envoy.yaml").write_text(yaml.safe_dump(envoy_config(ports, **changed)))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    process = start("envoy", [str(PICKER / "bin/envoy"), "-c", str(home / "envoy.yaml"), *options], home)
    with stopping(process):
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{ports['10000']}"
            deadline = time.monotonic() + HANG_S
            while True:
                assert process.child.poll() is None, process.log.read_text()
                try:
                    await client.get(url + "/up")
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
        yield url


async def slice_(tmp_path: Path) -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        port = free_port()
        ports = {"10000": free_port(), "9002": port, "8000": one.port}
        more = f"picker: {{bind: '127.0.0.1:{port}', tenant: acme}}\n"
        settings = SETTINGS + f'      - {{{{id: e1, url: "{two.url}"}}}}\n'
        async with serving(tmp_path / "t", one.url, settings=settings, more=more) as served, envoy(tmp_path, ports) as url:
            async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
                body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
                r = await client.post(url + "/v1/chat/completions", json=body)
                print(r.status_code, r.headers, r.text)
                async with client.stream("POST", url + "/v1/chat/completions", json={**body, "stream": True, "max_tokens": 200}) as r:
                    print(r.status_code, r.headers)
                    async for line in r.aiter_lines():
                        break
                    print((await client.get(served.admin + "/backends")).json())
                    t = time.monotonic()
                    async for line in r.aiter_lines():
                        pass
                    print("stream took", time.monotonic() - t)
                print((await client.get(served.admin + "/backends")).json()["backends"][0])
                r = await client.post(url + "/v1/chat/completions", json={**body, "model": "nope"})
                print(r.status_code, r.headers, r.text)
                print((await client.get(served.admin + "/metrics")).text.split("tidegate_picks_total")[-5:])
            print((tmp_path / "t" / "err.log").read_text()[-3000:])
            print((tmp_path / "envoy.log").read_text()[-3000:])
