from gateway.placement.decisions import contenders
from routing.fleet import Availability, Backend
from routing.schedule import ALONE, Route

A, B, C = (Backend(name, "p", Availability.UP, "") for name in "abc")
DOWN = Backend("d", "p", Availability.DOWN, "no answer")
NONE = (0.0,) * 7


def route(*costs: float, why: str = "") -> Route:
    ranked = tuple((backend, (cost, 0.1, *NONE)) for backend, cost in zip((A, B, C), costs, strict=False))
    return Route("predicted_latency", ranked, (DOWN,), costs=costs, matched=(64.0, 0.0, 0.0)[: len(costs)], why=why)


def test_every_loser_says_why() -> None:
    found = contenders(route(0.1, 0.3, 0.6))
    assert [(one.backend, one.cost, one.held_tokens, one.lost) for one in found] == [
        ("a", 0.1, 64.0, ""),
        ("b", 0.3, 0.0, "costs 0.2 more (queue_s +0.2)"),
        ("c", 0.6, 0.0, "costs 0.5 more (queue_s +0.5)"),
        ("d", None, 0.0, "no answer"),
    ]
    assert found[0].terms["queue_s"] == 0.1


def test_among_equals_it_says_what_decided() -> None:
    assert contenders(route(0.1, 0.1))[1].lost == "costs the same; the dice decided"
    assert "conversation" in contenders(route(0.12, 0.1, why="session"))[1].lost


def test_one_that_had_no_rival_has_no_terms() -> None:
    alone = Route("predicted_latency", ((A, ()),), (DOWN,), (), (0.0,), (0.0,), why=ALONE)
    assert [(one.backend, one.terms) for one in contenders(alone)] == [("a", {}), ("d", {})]
    assert alone.explanation().sentence() == "predicted_latency: a; excluded d: no answer"
