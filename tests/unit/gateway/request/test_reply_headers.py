import random
from types import SimpleNamespace
from typing import Any

import pytest

from domain.usage import Usage
from gateway.record import Fell
from gateway.request.rate_limit_replies import limit_header_lines
from gateway.request.reply_headers import EXPOSED, common_headers, cors_headers, reply_headers
from gateway.story import Story
from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import LoadTable
from routing.policy_instance import policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.schedule import place
from tenancy.hold import LimitStatus
from tenancy.limits import Level, Limit, Meter, Scope, Window, line_of
from tests.stories import with_facts

LINES = [line_of(Limit(Scope(Level.TENANT, "t"), meter, Window.DAY, 10, soft=1), 0.0) for meter in (Meter.REQUESTS, Meter.TOKENS)]
OURS = {"request-id", "backend", "pool", "revision", "cache", "queue-ms", "overhead-ms", "decision", "reason", "prefix-hit-tokens"}


def made(
    *, expose: bool, events: int = 1, usage: Usage | None = None, stream: bool = False, fell_back: tuple[Fell, ...] = (), **headers: bytes
) -> dict[str, str]:
    exchange: Any = SimpleNamespace(head=SimpleNamespace(headers={n.encode(): v for n, v in headers.items()}))
    deps: Any = SimpleNamespace(clock=lambda: 10.25, cors_origins=frozenset({"https://app.example"}))
    pool = Pool("chat", "m", "3", "vllm", (Backend("a", "chat", Availability.UP), Backend("b", "chat", Availability.DOWN, "no answer")))
    pool = Fleet({"chat": pool}).pools["chat"]
    story = with_facts(
        Story("theirs", 10.0, 0.0, 10.125, "req-1"),
        expose=expose,
        pool="chat",
        revision="3",
        backend="a",
        queue_s=0.0625,
        dispatched_at=10.25,
        events=events,
        fell_back=fell_back,
    )
    story.placed.route = place(
        RoutingRequest(9), pool, LoadTable("ab"), policy_instance("least_load"), Circumstances(0.0), random.Random(1)
    )
    lines = reply_headers(exchange, story, usage, deps, stream=stream)
    assert lines.endswith(b"\r\n")
    pairs = [line.split(": ", 1) for line in lines.decode("ascii").split("\r\n")[:-1]]
    assert len(pairs) == len(dict(pairs)), "no header twice"  # type: ignore[arg-type]  # two-item lists
    return dict(pairs)  # type: ignore[arg-type]  # as above


def test_untrusted_callers_see_openais_headers_only() -> None:
    assert made(expose=False) == {
        "content-type": "application/json",
        "x-request-id": "theirs",
        "x-tidegate-request-id": "req-1",
        "openai-processing-ms": "250",
    }


def test_trusted_callers_see_what_happened_inside() -> None:
    headers = made(expose=True, usage=Usage(prompt_tokens=9, cached_tokens=7))
    assert {name.removeprefix("x-tidegate-") for name in headers if name.startswith("x-tidegate-")} == OURS
    assert headers["x-tidegate-backend"] == "a"
    assert headers["x-tidegate-revision"] == "3"
    assert headers["x-tidegate-queue-ms"] == "62.500"
    assert headers["x-tidegate-overhead-ms"] == "62.500"
    assert headers["x-tidegate-prefix-hit-tokens"] == "7"
    assert headers["x-tidegate-reason"] == "least_load: a; excluded b: no answer"


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


@pytest.mark.parametrize(
    ("limits", "steps", "said"),
    [
        (True, (), "limits"),
        (False, ("trim_output_tokens", "model=small"), "trim_output_tokens, model=small"),
        (True, ("model=small",), "limits, model=small"),
    ],
)
def test_everybody_is_told_what_it_got_instead(limits: bool, steps: tuple[str, ...], said: str) -> None:
    exchange: Any = SimpleNamespace(head=SimpleNamespace(headers={}))
    deps: Any = SimpleNamespace(clock=lambda: 10.25, cors_origins=frozenset())
    story = with_facts(Story("req-1", 10.0, 0.0, 10.125, "req-1"), degraded=limits, steps=steps)
    assert f"x-tidegate-degraded: {said}\r\n".encode() in common_headers(exchange, story, deps)


def test_a_page_may_read_every_header_of_ours_that_a_reply_can_carry_for_limits() -> None:
    """A page reads what is named alone, so what limits say has to be."""
    made_here = {
        made.partition(b": ")[0] for made in limit_header_lines([LimitStatus(line, 0, 1) for line in LINES]).split(b"\r\n")[:-1]
    } | {b"x-tidegate-degraded"}
    assert made_here <= set(EXPOSED.split(b", "))
    assert len(made_here) == 8


def test_trusted_callers_are_told_which_models_could_not_answer() -> None:
    fell = (Fell("big", "mid", "no_capacity", "overloaded"), Fell("mid", "small", "error", "engine_error"))
    assert made(expose=True, fell_back=fell)["x-tidegate-fallback"] == "big=no_capacity, mid=error"
    assert "x-tidegate-fallback" not in made(expose=False, fell_back=fell)
