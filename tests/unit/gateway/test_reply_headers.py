import random
from types import SimpleNamespace
from typing import Any

import pytest

from domain.usage import Usage
from gateway.reply_headers import cors_headers, reply_headers
from gateway.story import Story
from routing.fleet import Backend, Fleet, Pool, State
from routing.load import Load
from routing.schedule import schedule

OURS = {"backend", "pool", "revision", "cache", "queue-ms", "overhead-ms", "decision", "reason", "prefix-hit-tokens"}


def made(*, expose: bool, events: int = 1, usage: Usage | None = None, stream: bool = False, **headers: bytes) -> dict[str, str]:
    exchange: Any = SimpleNamespace(head=SimpleNamespace(headers={n.encode(): v for n, v in headers.items()}))
    deps: Any = SimpleNamespace(clock=lambda: 10.25, cors_origins=frozenset({"https://app.example"}))
    pool = Pool("chat", "m", "3", "vllm", (Backend("a", "chat", State.UP), Backend("b", "chat", State.DOWN, "no answer")))
    pool = Fleet({"chat": pool}).pools["chat"]
    story = Story(
        "req-1",
        10.0,
        0.0,
        10.125,
        expose=expose,
        pool="chat",
        revision="3",
        backend="a",
        queue_s=0.0625,
        dispatched_at=10.25,
        events=events,
    )
    story.route = schedule(None, pool, Load(["a", "b"]), 0.0, random.Random(1), "least_load")  # type: ignore[arg-type]  # least_load looks at no Ask
    lines = reply_headers(exchange, story, usage, deps, stream=stream)
    assert lines.endswith(b"\r\n")
    pairs = [line.split(": ", 1) for line in lines.decode("ascii").split("\r\n")[:-1]]
    assert len(pairs) == len(dict(pairs)), "no header twice"  # type: ignore[arg-type]  # two-item lists
    return dict(pairs)  # type: ignore[arg-type]  # as above


def test_untrusted_callers_see_openais_headers_only() -> None:
    assert made(expose=False) == {"content-type": "application/json", "x-request-id": "req-1", "openai-processing-ms": "250"}


def test_trusted_callers_see_what_happened_inside() -> None:
    headers = made(expose=True, usage=Usage(prompt_tokens=9, cached_tokens=7))
    assert {name.removeprefix("x-tidegate-") for name in headers if name.startswith("x-tidegate-")} == OURS
    assert headers["x-tidegate-backend"] == "a"
    assert headers["x-tidegate-revision"] == "3"
    assert headers["x-tidegate-queue-ms"] == "62.500"
    assert headers["x-tidegate-overhead-ms"] == "62.500"
    assert headers["x-tidegate-prefix-hit-tokens"] == "7"
    assert headers["x-tidegate-reason"] == "least_load: a (in_flight=0, share=1); excluded b: no answer"


def test_a_head_forced_out_by_a_heartbeat_does_not_guess_the_backend() -> None:
    headers = made(expose=True, stream=True, events=0)
    assert {"x-tidegate-backend", "x-tidegate-reason"}.isdisjoint(headers)
    assert headers["x-tidegate-pool"] == "chat"


def test_streams_are_not_buffered_on_the_way() -> None:
    headers = made(expose=False, stream=True)
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")


def test_only_allowed_origins_are_answered_as_such() -> None:
    assert made(expose=False, origin=b"https://app.example")["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in made(expose=False, origin=b"https://evil.example")


@pytest.mark.parametrize("origin", [b"https://app.example.evil", b"https://app.exampl", b"null", b"\xff"])
def test_an_origin_matches_whole_or_not_at_all(origin: bytes) -> None:
    exchange: Any = SimpleNamespace(head=SimpleNamespace(headers={b"origin": origin}))
    assert cors_headers(exchange, frozenset({"https://app.example"})) == b""
