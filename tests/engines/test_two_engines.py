"""Two real vLLM engines with KV events behind one gateway: placing follows what the engines say they hold.

The second engine computes the prompt behind the gateway's back, with the tenant's salt. When the first engine then forgets it, only the
events can tell the gateway where the prefix is.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.engines.asking import LONG, ask, cached, post, until
from tests.engines.processes import (
    GAP_S,
    Process,
    Tidegate,
    engine_home,
    engine_python,
    listen_kv,
    serve_tidegate,
    start_vllm,
    stopping,
    tiny_model,
)

pytestmark = pytest.mark.real_engine

MODEL, SERVED, BLOCK = "two-model", "tiny-served", 32
NAMES = ("a", "b")
WITHIN_S = 20.0
"""The longest time until an event is known; it takes milliseconds on a machine that is not busy."""


@dataclass
class Pair:
    engines: dict[str, Process]
    listeners: dict[str, Process]
    gateway: Tidegate

    def blocks(self, name: str) -> tuple[bool, int]:
        """Whether the gateway trusts the engine's events, and the blocks that they say it holds."""
        kv = self.gateway.backend(name)["kv"]
        return kv["trusted"], kv["blocks"]

    async def forgets(self, name: str) -> None:
        """Empty the prefix cache of one engine, and wait until the gateway knows. vLLM tells it with its next step only, so a short prompt
        of nobody follows."""
        engine = self.engines[name]
        assert engine.post("/reset_prefix_cache", {}).status_code == 200
        assert (await asyncio.to_thread(engine.post, "/v1/chat/completions", ask(SERVED, max_tokens=1))).status_code == 200
        await until(lambda: self.blocks(name)[1] <= 1, True, WITHIN_S)

    def salt(self, name: str) -> str:
        """The tenant's salt in the last prompt that the engine stored."""
        events = [event for batch in self.listeners[name].json_lines() for event in batch["events"]]
        heads = [event for event in events if event["type"] == "BlockStored" and event["parent_block_hash"] is None]
        return str(heads[-1]["extra_keys"][0][0])


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    python = engine_python(".venv-vllm", "test-engines")
    with engine_home("two") as home:
        model = tiny_model(python, home)
        engines, listeners, backends = {}, {}, []
        for name in NAMES:
            kv = {"endpoint": f"ipc://{home}/kv-{name}", "replay": f"ipc://{home}/replay-{name}"}
            events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": kv["endpoint"], "replay_endpoint": kv["replay"]}
            options = ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)]
            (home / name).mkdir()
            engines[name] = start_vllm(python, model, home / name, name, *options)
            listeners[name] = listen_kv(python, kv["endpoint"], home / name)
            backends.append({"id": name, "url": engines[name].url, "kv_events": kv})
        with stopping(*engines.values(), *listeners.values()):
            for engine in engines.values():
                engine.wait_ready()
            pool = {"name": "two", "model": SERVED, "tokenizer": str(model / "model"), "backends": backends}
            # a policy that counts cached blocks and load, so that the measured speeds of two engines on one machine decide nothing
            policy = {"routing": {"policy": "llmd_223"}}
            gateway = serve_tidegate(home / "gateway", [pool], policy=policy, token_gap_s=GAP_S)
            with stopping(gateway):
                yield Pair(engines, listeners, gateway)


async def test_a_prefix_is_followed_to_the_engine_that_says_it_holds_it(pair: Pair) -> None:
    prompt = f"followed. {LONG}"
    async with pair.gateway.client() as client:
        first = await post(client, MODEL, content=prompt)
        assert first.status_code == 200, (first.text, pair.gateway.tail())
        here = first.headers["x-tidegate-backend"]
        there = next(name for name in NAMES if name != here)
        blocks = first.json()["usage"]["prompt_tokens"] // BLOCK
        await until(lambda: pair.blocks(here)[0] and pair.blocks(here)[1] >= blocks, True, WITHIN_S)
        again = [await post(client, MODEL, content=prompt) for _ in range(3)]
        assert {reply.headers["x-tidegate-backend"] for reply in again} == {here}
        assert all(cached(reply) > 0 for reply in again)

        held_before = pair.blocks(there)[1]
        salted = ask(SERVED, content=prompt, cache_salt=pair.salt(here), max_tokens=1)
        direct = await asyncio.to_thread(pair.engines[there].post, "/v1/chat/completions", salted)
        assert direct.status_code == 200, direct.text
        await until(lambda: pair.blocks(there)[0] and pair.blocks(there)[1] >= held_before + blocks, True, WITHIN_S)
        await pair.forgets(here)
        moved = [await post(client, MODEL, content=prompt) for _ in range(3)]
        assert {reply.headers["x-tidegate-backend"] for reply in moved} == {there}
        assert all(cached(reply) > 0 for reply in moved), "already the first: the engine computed it behind the gateway's back"

        await pair.forgets(there)
        after = await post(client, MODEL, content=prompt)
        assert cached(after) == 0


async def test_prompts_without_the_tenants_salt_draw_no_request(pair: Pair) -> None:
    """What an engine holds of others is no reason to send a tenant's request there."""
    for name in NAMES:
        await pair.forgets(name)
    prompt = f"of others. {LONG}"
    async with pair.gateway.client() as client, pair.gateway.client("bolt") as other:
        first = await post(other, MODEL, content=prompt)
        holder = first.headers["x-tidegate-backend"]
        await until(lambda: pair.blocks(holder)[1] > 0, True, WITHIN_S)
        mine = await post(client, MODEL, content=prompt)
        assert cached(mine) == 0
