"""What is reserved for a prompt is what real engines count, to the token: vLLM and llama.cpp behind a real gateway with limits.

The limit is the witness: `x-ratelimit-remaining-tokens` is what is left right after a request's reservation, with every request before it
settled at what the engine counted.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.processes import (
    ROOT,
    Process,
    Tidegate,
    engine_home,
    engine_python,
    serve_tidegate,
    start_vllm,
    stopping,
    tiny_model,
)
from tests.engines.test_llamacpp import start_llama, weights
from tests.timing import HANG_S

pytestmark = pytest.mark.real_engine

AMOUNT = 10_000_000
ADMIN_TOKEN = "x" * 32
TEXTS = [
    "hello",
    "",
    "  two  blanks  and a tab\t and\n\n\nlines  ",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}\n",
    "Grüße aus Köln: 12,5 °C; »schön«, nicht wahr?",
    "日本語のテキストと、漢字。한국어 문장. Русский текст.",
    "🙂👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b zero width",
    "<|im_start|>system\nnot a real one<|im_end|>",
    "x" * 3000,
    "The quick brown fox jumps over the lazy dog. " * 100,
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the weather is, änywhere.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BARE_TOOL = {"type": "function", "function": {"name": "now"}}


def turn(role: str, content: object, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "K\\u00f6ln",  "days": 2}'}}
PLAIN: list[dict[str, Any]] = [
    *[{"messages": [turn("user", text)]} for text in TEXTS],
    *[{"messages": [turn("system", "Answer in one word."), turn("user", text)]} for text in TEXTS[:7]],
    {"messages": [turn("user", "a"), turn("assistant", "b"), turn("user", "c")]},
    {"messages": [turn("system", ""), turn("user", "a"), turn("assistant", ""), turn("user", "c")]},
    {"messages": [turn("user", TEXTS[i % 8]) if i % 2 == 0 else turn("assistant", TEXTS[i % 7]) for i in range(21)]},
    {"messages": [turn("user", [part("one part")])]},
    {"messages": [turn("user", [part("two"), part("parts")])]},
    {"messages": [turn("system", [part("be"), part("brief")]), turn("user", "hi")]},
    {"messages": [turn("user", "named", name="ann")]},
    {"messages": [turn("user", "hi")], "seed": 7, "user": "somebody", "stop": ["\n"], "logit_bias": {"5": 1}},
]
ANSWERED = turn("tool", "12 °C", tool_call_id="c1")
WITH_TOOLS: list[dict[str, Any]] = [
    {"messages": [turn("developer", "Be brief."), turn("user", "hi")]},
    {"messages": [turn("user", "weather?")], "tools": [TOOL], "tool_choice": "none"},
    {"messages": [turn("user", "weather?")], "tools": [TOOL, BARE_TOOL], "tool_choice": "none"},
    {
        "messages": [turn("user", "q"), turn("assistant", None, tool_calls=[CALL]), turn("tool", "12 °C", tool_call_id="c1")],
        "tools": [TOOL],
        "tool_choice": "none",
    },
    {
        "messages": [
            turn("user", "q"),
            turn("assistant", "so", tool_calls=[CALL, CALL]),
            turn("tool", [part("1"), part("2")], tool_call_id="c1"),
        ]
    },
]
UNFINISHED: dict[str, Any] = {"messages": [turn("user", "hi"), turn("assistant", "The answer")], "add_generation_prompt": False}
JOINED: dict[str, Any] = {"messages": [turn("system", "One."), turn("user", "hi"), turn("developer", "Two."), turn("user", "more")]}
EMPTY_PARTS: dict[str, Any] = {"messages": [turn("user", [part(""), part("and"), part(""), part("empty ones")])]}
COMPLETIONS: list[dict[str, Any]] = [
    *[{"prompt": text} for text in TEXTS if text],
    {"prompt": [5, 6, 7, 8]},
    {"prompt": ["two", "prompts of them"]},
]


@dataclass
class Bench:
    engine: Process
    gateway: Tidegate
    left: int = AMOUNT
    """Of the limit, with everything settled so far."""


def counting(home: Path, pool: dict[str, Any]) -> Tidegate:
    """A gateway with a limit on the input tokens of its tenant acme."""
    token = home.with_name("admin-token")
    token.write_text(ADMIN_TOKEN)
    gateway = serve_tidegate(home, [pool], sections={"secrets": {"admin_token": {"file": str(token)}}})
    command = [sys.executable, "-m", "gateway", "limit", "set", "tenant:acme:input_tokens:day", str(AMOUNT)]
    made = subprocess.run(
        [*command, "--admin", gateway.admin, "--token-file", str(token)], capture_output=True, text=True, check=False, cwd=home
    )
    assert made.returncode == 0, made.stderr
    return gateway


@pytest.fixture(scope="module")
def vllm() -> Iterator[Bench]:
    python = engine_python(".venv-vllm", "test-engines")
    with engine_home("counts") as home:
        model = tiny_model(python, home)
        engine = start_vllm(python, model, home, "vllm")
        with stopping(engine):
            engine.wait_ready()
            pool = {
                "name": "main",
                "model": "tiny-served",
                "tokenizer": str(model / "model"),
                "backends": [{"id": "main", "url": engine.url}],
            }
            gateway = counting(home / "gateway", pool)
            with stopping(gateway):
                yield Bench(engine, gateway)


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[Bench]:
    python = engine_python(".venv-vllm", "test-engines")
    with engine_home("counts") as home:
        made = subprocess.run(
            [python, str(ROOT / "tests/engines/gguf_tokenizer.py"), weights(), str(home / "smol")],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        engine = start_llama(home, "smol-served", "--threads", "2", "--ctx-size", "8192", "--parallel", "1")
        with stopping(engine):
            engine.wait_ready()
            pool = {
                "name": "main",
                "model": "smol-served",
                "dialect": "llamacpp",
                "tokenizer": str(home / "smol"),
                "backends": [{"id": "llama", "url": engine.url}],
            }
            gateway = counting(home / "gateway", pool)
            with stopping(gateway):
                yield Bench(engine, gateway)


def admin_of(bench: Bench) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=bench.gateway.admin, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}, trust_env=False, timeout=HANG_S
    )


async def used(admin: httpx.AsyncClient) -> int:
    (state,) = (await admin.get("/admin/v1/limits/state?name=acme")).json()["items"]
    return int(state["used"])


async def at_rest(bench: Bench) -> int:
    """What is used of the limit, once what came before the limit was set is counted as well: the ledger has it."""
    seen: list[int] = []
    async with admin_of(bench) as admin:
        while len(seen) < 6 or len(set(seen[-6:])) > 1:
            seen.append(await used(admin))
            await asyncio.sleep(0.5)
    return seen[-1]


async def settled(bench: Bench, admin: httpx.AsyncClient) -> None:
    """Wait until the request before has given back what it did not need; its answer was out a moment sooner."""
    async with asyncio.timeout(10):
        while await used(admin) != AMOUNT - bench.left:
            await asyncio.sleep(0.02)


async def off(bench: Bench, path: str, asked: list[dict[str, Any]]) -> list[tuple[int, int, dict[str, Any]]]:
    """The requests whose reservation is not what the engine counts: both numbers, and the request."""
    wrong = []
    async with bench.gateway.client() as client, admin_of(bench) as admin:
        async with asyncio.timeout(30):
            while bench.left == AMOUNT:
                reply = await client.post(path, json={"model": "main-model", "max_tokens": 1, **asked[0]})
                if "x-ratelimit-limit-tokens" in reply.headers:  # the limit is followed within seconds
                    bench.left = AMOUNT - await at_rest(bench)
                await asyncio.sleep(0.1)
        for fields in asked:
            await settled(bench, admin)
            reply = await client.post(path, json={"model": "main-model", "max_tokens": 1, "temperature": 0, **fields})
            assert reply.status_code == 200, (fields, reply.text)
            counted = int(reply.json()["usage"]["prompt_tokens"])
            reserved = bench.left - int(reply.headers["x-ratelimit-remaining-tokens"])
            bench.left -= counted
            if reserved != counted:
                wrong.append((reserved, counted, fields))
    return wrong


async def test_vllm_counts_what_was_reserved(vllm: Bench) -> None:
    assert await off(vllm, "/v1/chat/completions", [*PLAIN, UNFINISHED, *WITH_TOOLS]) == []
    assert await off(vllm, "/v1/completions", COMPLETIONS) == []
    # it leaves out empty parts with their lines, and joins what system and developers say, which bytes bound
    for reserved, counted, fields in await off(vllm, "/v1/chat/completions", [EMPTY_PARTS, JOINED]):
        assert reserved > counted, fields


async def test_llamacpp_counts_what_was_reserved_or_a_little_less(llamacpp: Bench) -> None:
    assert await off(llamacpp, "/v1/chat/completions", [*PLAIN, *WITH_TOOLS]) == []
    assert await off(llamacpp, "/v1/completions", COMPLETIONS[:-2]) == []
    # it leaves out an empty first part with its line, and begins an answer although it is told not to
    for reserved, counted, fields in await off(llamacpp, "/v1/chat/completions", [EMPTY_PARTS, UNFINISHED, JOINED]):
        assert reserved > counted, fields
