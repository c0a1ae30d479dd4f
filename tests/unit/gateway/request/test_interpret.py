"""Laws of the steps around a request: who gets in, what is reserved, and that each hold and each request is closed once."""

from typing import Any

from domain.ask import Ask, Endpoint
from domain.faults import Kind
from gateway.request.admit import admit
from gateway.request.holds import OpenHold
from gateway.request.interpret import interpret
from gateway.request.settle import open_story
from gateway.story import Story
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.request_path import CALLER, Engine, Path, caller, fault_of

TENANT = Scope(Level.TENANT, "acme")
ONE = [Limit(TENANT, Meter.REQUESTS, Window.MINUTE, 1)]
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True}
JSON = b"application/json"


async def interpreted(path: Path, story: Story, body: object = BODY, **headers: bytes) -> tuple[Ask, Any, Any]:
    exchange, _ = caller(body, **{"content_type": JSON, **headers})
    return await interpret(Endpoint.CHAT, exchange, CALLER, story, path.deps)


async def admitted(path: Path, story: Story) -> OpenHold:
    ask, rule, grant = await interpreted(path, story)
    _, hold = await admit(CALLER, ask, rule, grant, story, path.deps)
    return hold


async def test_what_was_asked_for_is_in_the_story() -> None:
    path = Path(a=Engine())
    story = open_story(caller(x_request_id=b"mine")[0], path.deps)
    ask, rule, _ = await interpreted(path, story, {**BODY, "user": "ann"})
    asked = story.asked
    assert (story.request_id, story.own_id != "mine", ask.stream, rule.pool) == ("mine", True, True, "chat")
    assert (asked.model, asked.asked_model, asked.endpoint, asked.stream, asked.user) == ("sim", "", "/v1/chat/completions", True, "ann")
    assert asked.tenant_policy is not None
    assert asked.request_bytes > 0


async def test_what_is_no_json_or_names_no_model_of_the_callers_is_refused() -> None:
    path = Path(a=Engine())
    assert (await fault_of(interpreted(path, path.story(), content_type=b"text/plain"))).kind is Kind.UNSUPPORTED_MEDIA
    assert (await fault_of(interpreted(path, path.story(), {**BODY, "model": "another"}))).kind is Kind.MODEL_NOT_FOUND


# --- holds ----------------------------------------------------------------------------------------------------------
