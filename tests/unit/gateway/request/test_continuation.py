"""Which requests are plain enough for another engine to go on with their answer. `e2e/test_continued_streams.py` has the whole of it."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from domain.ask import Ask, Endpoint
from gateway.deps import Deps
from gateway.placement.place import Placement
from gateway.request.continuation import keeps

PLACEMENT = cast(Placement, SimpleNamespace(pool=SimpleNamespace(name="chat")))


def deps(**more: Any) -> Deps:
    return cast(Deps, SimpleNamespace(**{"continuing": frozenset({"chat"}), "hedges": {}, "sharing": {}, **more}))


def ask(endpoint: Endpoint = Endpoint.CHAT, **more: Any) -> Ask:
    plain = Ask(
        endpoint, "m", b'{"messages":[]}', True, True, 1, 10, 40, sequences=1, names=frozenset({"messages", "stream", "max_tokens"})
    )
    return msgspec.structs.replace(plain, **more)


def test_a_plain_streamed_text_is_kept_in_pools_that_ask_for_it() -> None:
    assert keeps(ask(), PLACEMENT, deps()) is not None
    assert keeps(ask(Endpoint.COMPLETIONS), PLACEMENT, deps()) is not None
    for other in (deps(continuing=frozenset()), deps(hedges={"chat": 1}), deps(sharing={"chat": 1})):
        assert keeps(ask(), PLACEMENT, other) is None


@pytest.mark.req("R11")
@pytest.mark.parametrize("more", [{"stream": False}, {"choices": 2}, {"sequences": 2}, {"logprobs": 1}])
def test_answers_that_are_no_single_text_are_not(more: dict[str, Any]) -> None:
    assert keeps(ask(**more), PLACEMENT, deps()) is None
    assert keeps(ask(Endpoint.EMBEDDINGS), PLACEMENT, deps()) is None


@pytest.mark.req("R11")
@pytest.mark.parametrize("name", ["tools", "response_format", "guided_json", "presence_penalty", "min_tokens", "a_field_of_tomorrow"])
def test_a_field_that_nobody_knows_to_mean_the_same_excludes_a_request(name: str) -> None:
    assert keeps(ask(names=frozenset({"messages", name})), PLACEMENT, deps()) is None
