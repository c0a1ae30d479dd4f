"""A real Envoy asks Tidegate's endpoint picker where requests go (`make test-picker`), configured as docs/reference/picker.md says."""

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from backends.simengine import SimEngine, SimSettings
from gateway.picker.messages import FIELDS
from tests.e2e.test_serve import SETTINGS, Served, serving
from tests.engines.processes import ROOT, free_port, start, stopping
from tests.timing import HANG_S

pytestmark = pytest.mark.client

PICKER = ROOT / ".venv-picker"
PAGE = ROOT / "docs/reference/picker.md"
CHAT = "/v1/chat/completions"
SIM = SimSettings(models=("sim",), speed=20)
SHARED = "The same long beginning of a conversation. " * 100


def envoy_config(ports: dict[int, int], **changed: Any) -> dict[str, Any]:
    """The page's configuration with other ports, and further values of the filter."""
    (text,) = re.findall(r"```yaml as=other\n(static_resources:.*?)```", PAGE.read_text(), re.DOTALL)
    for shown, port in ports.items():
        assert f"port_value: {shown}" in text
        text = text.replace(f"port_value: {shown}", f"port_value: {port}")
    config: dict[str, Any] = yaml.safe_load(text)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    processor = manager["http_filters"][0]["typed_config"]
    processor["processing_mode"].update(changed.pop("processing_mode", {}))
    subset = changed.pop("subset", None)
    processor.update(changed)
    if subset is not None:  # another filter says among which engines the picker may choose
        namespace = "envoy.lb.subset_hint"
        processor["metadata_options"] = {"forwarding_namespaces": {"untyped": [namespace]}}
        hint = {"metadata_namespace": namespace, "value": {"x-gateway-destination-endpoint-subset": subset}}
        setter = {"@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config", "metadata": [hint]}
        manager["http_filters"].insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": setter})
    return config


class Standing:
    """Simulated engines, and a gateway that an Envoy in front of them asks."""

    def __init__(self, home: Path, engines: list[SimEngine], served: Served, port: int) -> None:
        self.home, self.engines, self.served, self.port = home, engines, served, port
        self.ends: list[AsyncExitStack] = []
        """What stops each engine."""
        self.client = httpx.AsyncClient(timeout=HANG_S)
        """The client of the Envoy that was started last."""

    @asynccontextmanager
    async def envoy(self, **changed: Any) -> AsyncIterator[httpx.AsyncClient]:
        front, name = free_port(), f"envoy-{time.monotonic_ns()}"
        config = envoy_config({10000: front, 9002: self.port, 8000: self.engines[0].port}, **changed)
        (self.home / f"{name}.yaml").write_text(yaml.safe_dump(config))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        process = start(name, [str(PICKER / "bin/envoy"), "-c", str(self.home / f"{name}.yaml"), *options], self.home)
        url = f"http://127.0.0.1:{front}"
        with stopping(process):
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_S) as self.client:
                give_up_at = time.monotonic() + HANG_S
                while True:
                    assert process.child.poll() is None, process.log.read_text()
                    try:
                        await self.client.get("/up")
                        break
                    except httpx.TransportError:
                        assert time.monotonic() < give_up_at, process.log.read_text()
                        await asyncio.sleep(0.02)
                yield self.client

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        return await self.client.post(CHAT, json=chat(text, **fields))

    @property
    def received(self) -> list[int]:
        return [len(engine.received) for engine in self.engines]

    async def in_flight(self) -> list[int]:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            return [each["in_flight"] for each in (await client.get(f"{self.served.admin}/backends")).json()["backends"]]

    async def none_in_flight(self) -> None:
        async with asyncio.timeout(HANG_S):
            while any(await self.in_flight()):
                await asyncio.sleep(0.02)

    async def picks(self) -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            page = (await client.get(f"{self.served.admin}/metrics")).text
        found = re.findall(r'^tidegate_picks_total\{outcome="(\w+)"\} (\S+)', page, re.MULTILINE)
        return {outcome: float(count) for outcome, count in found if float(count)}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


@asynccontextmanager
async def standing(home: Path, *settings: SimSettings, grace_s: float = 20.0) -> AsyncIterator[Standing]:
    assert (PICKER / ".made").exists(), f"{PICKER.name} is not there or not complete; run `make test-picker`"
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(AsyncExitStack()) for _ in settings]
        engines = [await end.enter_async_context(SimEngine(each)) for end, each in zip(ends, settings, strict=True)]
        more = "".join(f'      - {{{{id: e{at}, url: "{engine.url}"}}}}\n' for at, engine in enumerate(engines) if at)
        port = free_port()
        section = f"picker: {{bind: '127.0.0.1:{port}', tenant: acme}}\n"
        gateway = serving(home / "t", engines[0].url, grace_s=grace_s, settings=SETTINGS + more, more=section)
        served = await stack.enter_async_context(gateway)
        stand = Standing(home, engines, served, port)
        stand.ends = ends
        yield stand


def test_our_messages_are_envoys() -> None:
    """Every field of the table has the number, the type and the repetition that it has in Envoy's own messages."""
    script = """
import json, sys
from envoy.service.ext_proc.v3 import external_processor_pb2
found = {}
def walk(message):
    if message.name in found: return
    found[message.name] = {f.number: [f.name, f.type, f.is_repeated, f.message_type.name if f.message_type else ""] for f in message.fields}
    for f in message.fields:
        if f.message_type: walk(f.message_type)
for name in ("ProcessingRequest", "ProcessingResponse"):
    walk(external_processor_pb2.DESCRIPTOR.message_types_by_name[name])
print(json.dumps(found))
"""
    done = subprocess.run([str(PICKER / "bin/python"), "-c", script], capture_output=True, text=True, check=True)
    real = json.loads(done.stdout)
    types = {"bool": 8, "string": 9, "bytes": 12, "int32": (5, 14)}
    name, compared = "", 0
    for line in FIELDS.splitlines():
        if line and not line.startswith(" "):
            name = line
        elif line and not name.startswith("HealthCheck"):
            number, field, kind, *repeated = line.partition(" | ")[0].split()
            theirs = real[name][number]
            assert (theirs[0], theirs[2]) == (field, bool(repeated)), f"{name}.{field}"
            wanted = types.get(kind)
            if wanted is None:
                assert (theirs[1], theirs[3]) == (11, kind), f"{name}.{field}"
            else:
                assert theirs[1] == wanted or theirs[1] in (wanted if isinstance(wanted, tuple) else ()), f"{name}.{field}"
            compared += 1
    assert compared == 56


async def test_requests_reach_engines_as_the_picker_says(tmp_path: Path) -> None:
    async with standing(tmp_path, SIM, SIM) as stand, stand.envoy():
        for number in range(6):  # prompts with one beginning stay together
            assert (await stand.chat(SHARED + str(number))).status_code == 200
        assert sorted(stand.received) == [0, 6]
        await asyncio.gather(*[stand.chat(f"{number} other " * 300, max_tokens=200) for number in range(20)])
        assert min(stand.received) >= 6  # and others spread
        await stand.none_in_flight()
        sent = json.loads(stand.engines[stand.received.index(max(stand.received))].received[0].body)
        assert list(sent) == ["model", "cache_salt", "messages", "max_tokens"]

        large = "word " * 300_000  # 1.5 MB: many pieces each way
        assert (await stand.chat(large, max_tokens=1)).status_code in (200, 400)

        for body, status, code in ((chat(model="nope"), 404, "model_not_found"), ({"model": "sim"}, 400, "missing_required_parameter")):
            refused = await stand.client.post(CHAT, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        broken = await stand.client.post(CHAT, content=b'{"model":', headers={"content-type": "application/json"})
        assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")
        listed = await stand.client.get("/v1/models")
        assert (listed.status_code, listed.json()["error"]["code"]) == (404, "unknown_url")

        # a caller chooses no engine
        before = stand.received
        elsewhere = {"x-gateway-destination-endpoint": f"127.0.0.1:{stand.served.port}"}
        assert (await stand.client.post(CHAT, json=chat(), headers=elsewhere)).status_code == 200
        assert sum(stand.received) == sum(before) + 1
        assert (await stand.picks())["picked"] == 28.0

        async with stand.envoy(subset=[f"127.0.0.1:{stand.engines[1].port}"]):
            before = stand.received
            for number in range(6):
                assert (await stand.chat(f"{number} again")).status_code == 200
            assert stand.received == [before[0], before[1] + 6]
        async with stand.envoy(subset=[]):
            assert (await stand.chat()).status_code == 503


async def test_a_stream_counts_until_its_end_in_every_mode(tmp_path: Path) -> None:
    slow = SimSettings(models=("sim",), speed=2)
    async with standing(tmp_path, slow, slow) as stand:
        for request, answer in product(("BUFFERED", "FULL_DUPLEX_STREAMED"), ("NONE", "STREAMED", "FULL_DUPLEX_STREAMED")):
            modes = {"request_body_mode": request, "response_body_mode": answer}
            if request == "BUFFERED":
                modes["request_trailer_mode"] = "SKIP"
            async with stand.envoy(processing_mode=modes) as client:
                for cut in (False, True):
                    async with client.stream("POST", CHAT, json=chat(f"{modes}", stream=True, max_tokens=400)) as reply:
                        lines = reply.aiter_lines()
                        assert (await anext(lines)).startswith("data: ")
                        assert sum(await stand.in_flight()) == 1, modes
                        if not cut:
                            assert [line async for line in lines if line][-1] == "data: [DONE]"
                    await stand.none_in_flight()
        assert (await stand.picks())["picked"] == 12.0
        # without trailers Envoy says nothing after the answer's head: why the page has `response_trailer_mode: SEND`
        async with stand.envoy(processing_mode={"response_trailer_mode": "SKIP"}) as client:
            async with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=400)) as reply:
                await anext(reply.aiter_lines())
                await stand.none_in_flight()
        # a mode in which nothing can be picked is an error that says what to set
        async with stand.envoy(processing_mode={"request_body_mode": "STREAMED", "request_trailer_mode": "SKIP"}) as client:
            assert (await client.post(CHAT, json=chat())).status_code == 500


async def test_dead_engines_are_left_out_and_a_dead_picker_fails_requests_or_lets_them_pass(tmp_path: Path) -> None:
    buffered = {"request_body_mode": "BUFFERED", "request_trailer_mode": "SKIP"}
    async with (
        standing(tmp_path, SIM, SIM) as stand,
        stand.envoy() as strict,
        stand.envoy(failure_mode_allow=True, processing_mode=buffered) as lenient,
    ):
        # the proxy says of answers how long an engine took: a refusal without that is no engine's
        assert (await stand.chat()).status_code == 200
        await stand.ends[1].aclose()
        statuses = [(await stand.chat(f"{number} " * 100)).status_code for number in range(30)]
        assert statuses.count(503) <= 2  # until a request or a poll has told
        assert statuses[-20:] == [200] * 20

        stand.served.process.kill()
        await asyncio.to_thread(stand.served.process.wait)
        async with asyncio.timeout(HANG_S):
            while listens(stand.port):  # its workers see that it is gone
                await asyncio.sleep(0.02)
        before = sum(stand.received)
        assert (await strict.post(CHAT, json=chat())).status_code == 500
        assert sum(stand.received) == before
        assert (await lenient.post(CHAT, json=chat())).status_code == 200
        assert sum(stand.received) == before + 1


async def test_answers_under_way_outlive_the_picker_that_ends(tmp_path: Path) -> None:
    slow = SimSettings(models=("sim",), speed=2)
    for answer in ("NONE", "STREAMED"):
        modes = {"response_body_mode": answer}
        async with standing(tmp_path / answer, slow, grace_s=0.2) as stand, stand.envoy(processing_mode=modes) as client:
            async with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=1500)) as reply:
                lines = reply.aiter_lines()
                assert (await anext(lines)).startswith("data: ")
                stand.served.process.terminate()
                await asyncio.to_thread(stand.served.process.wait)
                left = [line async for line in lines if line]
                assert (len(left) > 100, left[-1]) == (True, "data: [DONE]"), answer


async def test_the_lowest_class_is_shed_where_engines_are_full_and_nobody_is_a_503(tmp_path: Path) -> None:
    async with standing(tmp_path, SimSettings(models=("sim",), speed=1)) as stand, stand.envoy() as client:
        running = [asyncio.create_task(stand.chat("long " * 3000 + str(number), max_tokens=600, stream=True)) for number in range(80)]
        async with asyncio.timeout(HANG_S):
            while (shed := await client.post(CHAT, json=chat(), headers={"x-tidegate-class": "batch"})).status_code != 429:
                pass
        assert shed.json()["error"]["code"] == "overloaded"
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await stand.none_in_flight()
        assert (await stand.picks())["shed"] >= 1

        await stand.ends[0].aclose()
        async with asyncio.timeout(HANG_S):
            while "no_backend" not in (refused := await stand.chat()).text:
                assert refused.status_code == 503
        assert refused.headers["retry-after"]
