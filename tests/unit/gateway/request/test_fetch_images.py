"""Images by URL on the path of a request: fetched before anything is held, inline for the engine, refused with their path."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.retry_after import SOON
from gateway.http.image_fetch import ImageBudget, ImageFetcher, ImageRefused
from gateway.lifecycle import serve
from gateway.request.interpret import apply_policy, interpret
from policies.image_urls import ImageUrls
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.request_path import CALLER, KEY, Engine, Path, caller, fault_of, turns

URL = "https://images.example.com/a.png"
DATA = "data:image/png;base64," + "A" * 3000
LISTED = {"image_urls": {"hosts": ["images.example.com"], "max_images": 2}}
JSON = {"content_type": b"application/json", "authorization": b"Bearer " + KEY.text.encode()}


class Images(ImageFetcher):
    """Images that are at hand, and every call for them."""

    def __init__(self, path: Path, refused: ImageRefused | None = None) -> None:
        super().__init__()
        self.path = path
        self.refused = refused
        self.calls: list[tuple[list[str], str]] = []
        self.held: list[int] = []
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.ended = ""
        self.came = 0
        """Bytes that have come of the images."""

    async def fetch(self, urls: Iterable[str], rules: ImageUrls, budget: ImageBudget, tenant: str) -> dict[str, str]:
        self.calls.append((list(urls), tenant))
        self.held.append(len(self.path.deps.holds))
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.path.worker.now += 2.0
        if self.refused is not None:
            raise self.refused
        try:
            budget.part(1)(self.came)
        except ImageRefused as refused:
            refused.url = self.calls[-1][0][0]
            raise
        return dict.fromkeys(self.calls[-1][0], DATA)


def path_with(policy: dict[str, Any], limits: Any = (), refused: ImageRefused | None = None) -> tuple[Path, Images]:
    path = Path(limits, policy, a=Engine())
    images = Images(path, refused)
    path.deps = replace(path.deps, images=images)
    return path, images


def chat(*urls: str, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": "?"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    return {"model": "sim", "messages": [{"role": "user", "content": parts}], "stream": True, **fields}


async def read(path: Path, body: dict[str, Any]) -> Any:
    return (await interpret(Endpoint.CHAT, caller(body, **JSON)[0], CALLER, path.story(), path.deps))[0]


async def test_the_engine_gets_the_image_and_the_limits_count_it_as_an_inline_one() -> None:
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.MINUTE, 1_000_000)]
    path, images = path_with(LISTED, limits)
    holds: list[Any] = []
    admit = path.deps.counters.admit

    async def admitted(hold: Any) -> Any:
        holds.append(hold.amounts)
        return await admit(hold)

    path.deps.counters.admit = admitted  # type: ignore[method-assign]
    for body in (chat(URL, max_tokens=7), chat(DATA, max_tokens=7)):
        await serve(caller(body, **JSON)[0], Endpoint.CHAT, path.deps)
    assert path.defects == []
    assert images.held == [0], "nothing is held while the image comes"
    assert len(images.calls) == 1
    assert images.calls[0] == ([URL], "acme")
    assert DATA.encode() in path.engines["a"].calls[0].body
    assert URL.encode() not in path.engines["a"].calls[0].body
    assert abs(holds[0].input_tokens - holds[1].input_tokens) < 10, "the body had the URL, the request has the image"
    record = path.records[0]
    assert (record.outcome, record.duration_s >= 2.0, record.overhead_s < 0.5) == ("ok", True, True), "the wait is not the gateway's"


async def test_a_policy_without_hosts_refuses_as_ever() -> None:
    path, images = path_with({})
    fault = await fault_of(read(path, chat(URL)))
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "messages[0].content[1].image_url.url")
    assert "only data: URLs are accepted" in fault.message
    models = [{"name": "sim", "pool": "chat"}, {"name": "seeing", "pool": "chat"}]
    path, images = path_with({"models": models, "for_model": {"seeing": LISTED}})
    assert "only data: URLs are accepted" in (await fault_of(read(path, chat(URL)))).message, "another model's policy lists hosts"
    assert images.calls == []
    assert DATA.encode() in (await read(path, chat(URL, model="seeing"))).fields


async def test_what_is_refused_is_refused_before_anything_is_fetched() -> None:
    path, images = path_with({**LISTED, "parameters": {"refused": ["temperature"]}})
    assert (await fault_of(read(path, chat(URL, temperature=1)))).kind is Kind.NOT_PERMITTED
    assert (
        "at most 2 are allowed. The policy of your tenant sets this bound (image_urls.max_images)"
        in (await fault_of(read(path, chat(URL, URL, URL)))).message
    )
    assert (await fault_of(read(path, chat(URL, model="other")))).kind is Kind.MODEL_NOT_FOUND
    assert images.calls == []


@pytest.mark.parametrize("again", [False, True])
async def test_the_refusal_names_the_host_the_reason_and_the_path_and_no_address(*, again: bool) -> None:
    path, _ = path_with(
        LISTED, refused=ImageRefused("its host has no public address; send X", detail="it is 10.0.0.5", again=again, url=URL)
    )
    exchange, connection = caller(chat("data:image/png;base64,AAAA", URL), **JSON)
    await serve(exchange, Endpoint.CHAT, path.deps)
    error = msgspec.json.decode(connection.out.partition(b"\r\n\r\n")[2])["error"]
    assert error["param"] == "messages[0].content[2].image_url.url"
    assert "the image at 'images.example.com' could not be fetched: its host has no public address; send X." in error["message"]
    assert b"10.0.0.5" not in connection.out
    assert "10.0.0.5" in path.records[0].detail, "for operators"
    assert (b"x-should-retry: true" in connection.out) is again
    assert path.engines["a"].calls == []


async def test_a_fallback_does_not_fetch_again() -> None:
    models = [{"name": "sim", "pool": "chat", "fallback": [{"to": "second"}]}, {"name": "second", "pool": "chat"}]
    path, images = path_with({**LISTED, "models": models, "for_model": {"second": {"image_urls": None}}})
    story = path.story()
    await interpret(Endpoint.CHAT, caller(chat(URL), **JSON)[0], CALLER, story, path.deps)
    assert story.asked.chain is not None
    assert DATA.encode() in story.asked.chain.asked.fields
    assert len(images.calls) == 1


async def test_the_images_may_not_make_the_request_too_large() -> None:
    path, images = path_with({**LISTED, "caps": {"body_bytes": 5000}})
    await read(path, chat(URL))
    images.came = (5000 - len(msgspec.json.encode(chat(URL)))) * 3 // 4
    await read(path, chat(URL))
    images.came += 3
    assert "caps.body_bytes" in (await fault_of(read(path, chat(URL)))).message, "the fetch ends as soon as there is no more room"
    images.came = 0
    for second in (URL.replace("a.png", "b.png"), URL):
        fault = await fault_of(read(path, chat(URL, second)))
        assert fault.kind is Kind.BODY_TOO_LARGE, "the engine gets an image as often as it stands in the request"


async def test_what_has_come_is_reserved_while_the_rest_is_on_its_way() -> None:
    path, images = path_with({**LISTED, "caps": {"body_bytes": 64 * 1024**2}})
    images.came = 30 * 1024**2
    exchange, connection = caller(chat(URL), **JSON)
    worker = connection.connections
    worker.large_bodies = worker.limits.large_bodies_total_bytes - images.came
    try:
        fault = await fault_of(interpret(Endpoint.CHAT, exchange, CALLER, path.story(), path.deps))
    finally:
        worker.large_bodies = 0
    assert (fault.kind, fault.retry) == (Kind.OVERLOADED, SOON)


async def test_the_images_count_towards_the_bound_of_a_fallback_too() -> None:
    models = [{"name": "sim", "pool": "chat", "fallback": [{"to": "second", "on": ["error"]}]}, {"name": "second", "pool": "chat"}]
    path, _ = path_with({**LISTED, "models": models, "for_model": {"second": {"caps": {"body_bytes": 2000}}}})
    story, (exchange, _) = path.story(), caller(chat(URL), **JSON)
    _, _, grant = await interpret(Endpoint.CHAT, exchange, CALLER, story, path.deps)
    chain = story.asked.chain
    assert chain is not None
    after = chain.after(Kind.ENGINE_ERROR, "sim")
    assert after is not None
    with pytest.raises(Fault) as refused:
        apply_policy(after[0], chain.asked, grant, exchange, story, path.deps)
    assert refused.value.kind is Kind.BODY_TOO_LARGE


async def test_the_caller_leaves_and_the_deadline_passes_meanwhile() -> None:
    path, images = path_with(LISTED)
    images.let_go.clear()
    exchange, _ = caller(chat(URL), **JSON)
    serving = asyncio.create_task(serve(exchange, Endpoint.CHAT, path.deps))
    await turns()
    exchange.connection_gone()
    await serving
    assert (images.ended, path.records[0].outcome, path.defects) == ("cancelled", "client_gone", [])

    path, images = path_with({**LISTED, "deadline_s": 0.01})
    images.let_go.clear()
    fault: Fault = await fault_of(read(path, chat(URL)))
    assert (fault.kind, images.ended) == (Kind.DEADLINE_PASSED, "cancelled")
