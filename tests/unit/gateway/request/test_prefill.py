"""Who is asked, in which order, where some backends are prefill or decode engines."""

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backends.dialects import DIALECTS
from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.request.prefill import split_request
from gateway.story import Story
from routing.disaggregation import HandoverTerms
from routing.fleet import Availability, Backend, Pool
from routing.load import LoadTable
from routing.ports import RoutingRequest
from routing.schedule import Route

ASK = Ask(Endpoint.CHAT, "m", b"{}", False, False, 1, 9_000, 100, sequences=1)
TERMS = HandoverTerms(100, 1e9)


def placed(
    roles: dict[str, str], *, ask: Ask = ASK, dialect: str = "sglang", terms: HandoverTerms | None = TERMS, busy: int = 0, lora: str = ""
) -> Any:
    """The route that comes out, and the story."""
    backends = tuple(Backend(name, "chat", Availability.UP, "", role=role) for name, role in roles.items())
    pool = Pool("chat", "m", "1", "sglang", backends, backends)
    load_table = LoadTable(roles)
    for name, role in roles.items():
        load_table.prefill_s_token[load_table.row_of[name]] = 1e-3
        for _ in range(busy if role == "both" else 0):
            load_table.begun(load_table.charge(name, 0, 10, 0.0))
    load_table.settle()
    deps: Any = SimpleNamespace(
        sharing={} if terms is None else {"chat": terms}, dialects={"chat": DIALECTS[dialect]}, rng=random.Random(1)
    )
    story = Story("r", 0.0, 0.0, 0.0)
    story.placed.lora = lora
    route = Route("least_load", tuple((b, (0.0, 1.0)) for b in backends), (), matched=tuple(0.0 for _ in backends))
    placement: Any = SimpleNamespace(
        pool=pool, route=route, request=RoutingRequest(9_000), pool_state=SimpleNamespace(load_table=load_table)
    )
    return split_request(ask, placement, story, deps, random.Random(1)), story


ALL = {"p": "prefill", "w1": "both", "d1": "decode", "w2": "both", "d2": "decode"}


def ids(route: Route) -> list[str]:
    return [backend.id for backend in route.backends]


def test_half_backends_never_serve_whole_requests() -> None:
    route, story = placed(ALL)
    assert ids(route) == ["w1", "w2"]
    assert {b.id: b.reason for b in route.excluded} == {
        "p": "serves one half of requests only (prefill)",
        "d1": "serves one half of requests only (decode)",
        "d2": "serves one half of requests only (decode)",
    }
    assert story.placed.shared.split.decode is None
    assert len(route.matched) == 2


def test_a_split_request_falls_back_on_whom_it_can() -> None:
    route, story = placed(ALL, busy=5)
    first = story.placed.shared.split.decode.id
    assert ids(route) == [first, "w1", "w2", "d2" if first == "d1" else "d1"]
    assert [b.id for b in route.excluded] == ["p"]
    assert len(route.matched) == 4


def test_without_terms_prefill_and_decode_engines_take_no_part() -> None:
    route, story = placed(ALL, terms=None, busy=5)
    assert ids(route) == ["w1", "w2"]
    assert story.placed.shared is None


CANNOT = [
    (msgspec.structs.replace(ASK, endpoint=Endpoint.EMBEDDINGS), "", "embeddings"),
    (msgspec.structs.replace(ASK, sequences=2), "", "more than one answer"),
    (msgspec.structs.replace(ASK, names=frozenset({"echo"})), "", "'echo'"),
    (ASK, "tuned@1", "an adapter"),
]


@pytest.mark.parametrize(("ask", "lora", "what"), CANNOT)
def test_what_cannot_be_split_is_served_whole_or_refused(ask: Ask, lora: str, what: str) -> None:
    route, story = placed(ALL, ask=ask, lora=lora, busy=5)
    assert ids(route) == ["w1", "w2"]
    assert story.placed.shared is None
    with pytest.raises(Fault) as refused:
        placed({"p": "prefill", "d": "decode"}, ask=ask, lora=lora)
    assert refused.value.kind is Kind.UNSUPPORTED_PARAMETER
    assert what in refused.value.message


def test_nobody_for_one_half_is_nobody_at_all() -> None:
    route, story = placed({"p": "prefill"})
    assert ids(route) == []
    assert "no backend generates" in story.placed.shared.split.sentence()
