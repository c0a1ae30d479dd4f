"""Engines that compute prompts and engines that generate are told and recommended apart, by a gateway of real processes."""

import asyncio
import json
from pathlib import Path

import httpx

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_metrics import when
from tests.e2e.test_serve import serving
from tests.timing import HANG_S

PROMPT = "the quick brown fox jumps over the lazy dog " * 100
"""Some 1,200 tokens."""
STREAMS = 5
SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
secrets: {{admin_token: {{file: token}}}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
pools:
  - name: chat
    model: sim
    dialect: vllm
    disaggregation: {{kv_bytes_token: 131072, bandwidth_gb_s: 50.0}}
    scale_roles:
      prefill: {{max: 8}}
      decode: {{max: 8, kv: 0.4, headroom: 0.0}}
    backends:
      - {{id: p, url: "{url}", role: prefill}}
      - {{id: d, url: "{backend}", role: decode}}
"""


def of(role: str, name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return f"tidegate_pool_{name}", (("pool", "chat"), ("role", role))


async def test_long_answers_ask_for_engines_that_generate_and_for_no_others(tmp_path: Path) -> None:
    # the answers hold three quarters of the memory of the engine that generates, and end when the test lets go of them
    (tmp_path / "token").write_text(TOKEN)
    prefill, decode = SimEngine(SimSettings(models=("sim",))), SimEngine(SimSettings(models=("sim",), kv_tokens=8_000))
    async with prefill, decode, serving(tmp_path, prefill.url, backend=decode.url, settings=SETTINGS) as served:
        body = {"model": "sim", "messages": [{"role": "user", "content": PROMPT}], "stream": True, "max_tokens": 6_000, "ignore_eos": True}
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S, headers=served.headers) as client:
            url = f"{served.url}/v1/chat/completions"

            async def hold(until: asyncio.Event) -> None:
                async with client.stream("POST", url, json=body) as reply:
                    assert reply.status_code == 200, await reply.aread()
                    await until.wait()

            done = asyncio.Event()
            async with asyncio.TaskGroup() as streams:
                for _ in range(STREAMS):
                    streams.create_task(hold(done))
                samples, _ = await when(served, client, lambda seen: seen.get(of("decode", "wanted_backends"), 0) >= 2)
                shown = json.loads((await asyncio.to_thread(command, served, "scaling", "--json")).stdout)
                table = (await asyncio.to_thread(command, served, "scaling")).stdout
                done.set()
    assert samples[of("prefill", "wanted_backends")] == samples[of("prefill", "backends")] == samples[of("decode", "backends")] == 1
    assert of("decode", "predicted_ttft_p95_seconds") not in samples, "it computes no prompts"
    assert samples[of("decode", "kv_pressure_ratio")] > 0.4 > samples[of("prefill", "kv_pressure_ratio")]
    by_role = {one["role"]: one for one in shown}
    assert by_role["prefill"]["wanted"] == 1 < by_role["decode"]["wanted"] and "of the KV cache" in by_role["decode"]["why"]
    assert " role " in table and " decode " in table, table
