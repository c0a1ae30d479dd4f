from gateway.placement.decisions import Decisions, decision
from routing.fleet import Availability, Backend
from routing.ports import RoutingRequest
from routing.schedule import Route

DEMAND = RoutingRequest(1000, tuple(range(15)), tenant="acme", session=9)


def routed(backends: int) -> Route:
    ranked = tuple((Backend(f"e{at}", "p", Availability.UP, ""), (1.0, 1.0)) for at in range(backends))
    return Route("least_load", ranked, (), costs=(1.0,) * backends, matched=(0.0,) * backends)


def test_a_request_is_found_by_either_of_its_ids() -> None:
    kept = Decisions()
    made = decision(routed(2), DEMAND, ("theirs", "req-1"), 5.0, "sim", "chat")
    kept.keep(made)
    found = kept.find("req-1")
    assert found == kept.find("theirs")
    assert found is not None
    assert (found.request_id, found.tenant, found.model, found.pool, found.policy, found.chosen, found.chain_blocks, found.session) == (
        "theirs", "acme", "sim", "chat", "least_load", "e0", 15, True,
    )  # fmt: skip
    assert found.served_by == ""
    made.served_by = "e1"
    assert kept.find("req-1").served_by == "e1"  # type: ignore[union-attr]  # it is there
    assert kept.find("another") is None


def test_what_is_kept_is_bounded_by_number_and_by_size() -> None:
    kept = Decisions(max_decisions=100, max_candidates=1000)
    for number in range(500):
        kept.keep(decision(routed(2), DEMAND, (f"r{number}",), 0.0, "sim", "chat"))
    assert (len(kept), len(kept._by_id)) == (100, 100)
    assert kept.find("r399") is None
    for number in range(500, 600):
        kept.keep(decision(routed(100), DEMAND, (f"r{number}",), 0.0, "sim", "chat"))
    assert len(kept) == 10
    kept.keep(decision(routed(5000), DEMAND, ("large",), 0.0, "sim", "chat"))
    assert (len(kept), kept.find("large") is not None) == (1, True)


def test_an_id_that_comes_again_stands_for_its_last_request() -> None:
    kept = Decisions(max_decisions=2)
    for at in range(3):
        kept.keep(decision(routed(1), DEMAND, ("same",), float(at), "sim", "chat"))
    found = kept.find("same")
    assert found is not None
    assert found.at_unix == 2.0
