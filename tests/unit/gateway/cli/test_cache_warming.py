"""What becomes of requests that are to warm the cache: read from the replies of a data port, with refusals, losses and a second look."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from gateway.cli.cache_warming import KEPT_WITHIN_S, RETRIES, Became, Warming
from gateway.cli.warm_requests import WarmRequest

Answer = Callable[[httpx.Request], httpx.Response]
ANSWERED = {"choices": [{"finish_reason": "stop"}]}


def requests(count: int) -> list[WarmRequest]:
    return [WarmRequest(line, "/v1/chat/completions", b'{"line":%d}' % line) for line in range(1, count + 1)]


def line_of(request: httpx.Request) -> int:
    line: int = json.loads(request.content)["line"]
    return line


def reply(status: str | None, body: Any = ANSWERED) -> httpx.Response:
    return httpx.Response(200, json=body, headers={} if status is None else {"x-tidegate-cache": status})


def refusal(status: int, code: str = "code", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"error": {"code": code, "message": f"said\x1b {code}"}}, headers=named)


def warmed(answer: Answer, count: int = 1, parallel: int = 1, **options: Any) -> tuple[Warming, list[float]]:
    """What became of requests, and the waits."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://gateway", transport=httpx.MockTransport(answer))

    warming = Warming(client, wait=wait, **options)
    asyncio.run(warming.run(requests(count), parallel))
    return warming, waits


def in_turn(answers: Sequence[httpx.Response | Exception]) -> tuple[Answer, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        one = answers[len(seen) - 1]
        if isinstance(one, Exception):
            raise one
        return one

    return answer, seen


@pytest.mark.parametrize(
    ("status", "became"),
    [
        ("hit-exact", Became("hit", "hit-exact")),
        ("hit-semantic", Became("hit", "hit-semantic")),
        ("bypass:sampled", Became("bypassed", "sampled")),
        ("miss", Became("unchecked")),
        ("hit-partial", Became("unchecked")),
        ("none", Became("no_cache")),
        (None, Became("unknown")),
    ],
)
def test_the_reply_says_what_the_cache_did(status: str | None, became: Became) -> None:
    answer, seen = in_turn([reply(status)])
    warming, _ = warmed(answer, check=False)
    assert (warming.became, len(seen)) == ({1: became}, 1)
    assert "cache-control" not in seen[0].headers


@pytest.mark.parametrize(
    ("second", "finish", "became"),
    [
        (reply("hit-exact"), "stop", Became("kept")),
        (refusal(504, "not_cached"), "length", Became("not_kept", "length")),
        (refusal(504, "not_cached"), "tool_calls", Became("not_kept", "tools")),
        (refusal(504, "not_cached"), "content_filter", Became("not_kept", "finish")),
        (refusal(504, "not_cached"), "stop", Became("not_kept")),
        (refusal(504, "timeout"), "stop", Became("unchecked")),
        (reply("miss"), "stop", Became("unchecked")),
        (httpx.ReadError("cut"), "stop", Became("unchecked")),
    ],
)
def test_a_miss_is_looked_up_once_more_and_no_engine_is_asked(second: Any, finish: str, became: Became) -> None:
    answer, seen = in_turn([reply("miss", {"choices": [{"finish_reason": finish}]}), second])
    warming, waits = warmed(answer, namespace="v2")
    assert warming.became == {1: became}
    assert [request.headers.get("cache-control") for request in seen] == [None, "only-if-cached"]
    assert {request.headers["x-tidegate-cache-namespace"] for request in seen} == {"v2"}
    assert seen[0].content == seen[1].content
    assert waits == [KEPT_WITHIN_S]


def test_a_refusal_with_a_time_to_wait_is_sent_again_after_it() -> None:
    answer, seen = in_turn([refusal(429, retry_after="3", retry_after_ms="2500"), refusal(503, retry_after="7"), reply("hit-exact")])
    warming, waits = warmed(answer)
    assert (waits, warming.waited, warming.became[1].state, len(seen)) == ([2.5, 7.0], 2, "hit", 3)


def test_refusals_without_end_are_a_failure_after_a_bounded_number() -> None:
    calls: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return refusal(429, "rate_limit_exceeded", retry_after="1")

    warming, waits = warmed(answer)
    assert (len(calls), waits) == (RETRIES + 1, [1.0] * RETRIES)
    assert warming.became == {1: Became("failed", "429 rate_limit_exceeded: said  rate_limit_exceeded")}


@pytest.mark.parametrize(
    "refused",
    [
        refusal(429, "insufficient_quota", x_should_retry="false", retry_after="1"),
        refusal(503, retry_after="121"),
        refusal(503, retry_after="Tue, 24 Nov 2026 10:00:00 GMT"),
        refusal(429),
        refusal(500, retry_after="1"),
        refusal(400),
    ],
)
def test_other_refusals_are_failures_at_once_and_the_rest_goes_on(refused: httpx.Response) -> None:
    answer, seen = in_turn([refused, reply("hit-exact")])
    warming, waits = warmed(answer, count=2)
    assert (warming.became[1].state, warming.became[2].state) == ("failed", "hit")
    assert str(refused.status_code) in warming.became[1].why
    assert (waits, len(seen), warming.stopped) == ([], 2, "")


def test_a_lost_reply_is_a_failure_of_its_request_alone() -> None:
    answer, _ = in_turn([httpx.ReadTimeout(""), reply("hit-exact")])
    warming, _ = warmed(answer, count=2)
    assert warming.became == {1: Became("failed", "ReadTimeout"), 2: Became("hit", "hit-exact")}


def test_an_error_that_is_no_json_is_named_by_its_status() -> None:
    warming, _ = warmed(lambda _: httpx.Response(502, text="<html>"))
    assert warming.became == {1: Became("failed", "502: no message")}


def test_a_key_that_is_refused_ends_it() -> None:
    answer, seen = in_turn([reply("hit-exact"), refusal(401, "invalid_api_key")])
    warming, _ = warmed(answer, count=50)
    assert (sorted(warming.became), len(seen)) == ([1], 2)
    assert warming.stopped == "401 invalid_api_key: said  invalid_api_key"


def test_a_gateway_that_is_replaced_meanwhile_is_waited_for_and_one_that_is_gone_ends_it() -> None:
    answer, _ = in_turn([httpx.ConnectError("refused"), httpx.ConnectError("refused"), reply("hit-exact")])
    warming, waits = warmed(answer)
    assert (warming.became[1].state, len(waits), warming.stopped) == ("hit", 2, "")

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    warming, waits = warmed(gone, count=50)
    assert (warming.became, len(waits)) == ({}, RETRIES)
    assert warming.stopped == "no gateway answers at http://gateway (refused)"


def test_every_request_is_sent_once_and_no_more_than_allowed_are_under_way() -> None:
    seen: Counter[int] = Counter()
    most = [0, 0]

    async def answer(request: httpx.Request) -> httpx.Response:
        most[0] += 1
        most[1] = max(most)
        for _ in range(3):
            await asyncio.sleep(0)
        most[0] -= 1
        seen[line_of(request)] += 1
        return reply("hit-exact")

    warming, _ = warmed(answer, count=40, parallel=8)  # type: ignore[arg-type]  # MockTransport awaits it
    assert seen == Counter(range(1, 41))
    assert len(warming.became) == 40
    assert most[1] == 8
