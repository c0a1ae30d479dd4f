import msgspec

from gateway.guards.facts import GuardCount, GuardRecord
from gateway.placement.decisions import Decision, Decisions, decision
from gateway.record import Record
from routing.fleet import Availability, Backend
from routing.ports import RoutingRequest
from routing.schedule import Route

DEMAND = RoutingRequest(1000, tuple(range(15)), tenant="acme", session=9)


def routed(backends: int) -> Route:
    ranked = tuple((Backend(f"e{at}", "p", Availability.UP, ""), (1.0, 1.0)) for at in range(backends))
    return Route("least_load", ranked, (), costs=(1.0,) * backends, matched=(0.0,) * backends)


def test_a_request_is_found_by_each_of_the_gateways_ids() -> None:
    kept = Decisions()
    made = decision(routed(2), DEMAND, ("req-1", "req-1-fallback"), 5.0, "sim", "chat")
    kept.keep(made)
    found = kept.find("req-1")
    assert found == kept.find("req-1-fallback") == kept.find("req-1", "acme")
    assert found is not None
    assert (found.request_id, found.tenant, found.model, found.pool, found.policy, found.chosen, found.chain_blocks, found.session) == (
        "req-1", "acme", "sim", "chat", "least_load", "e0", 15, True,
    )  # fmt: skip
    assert found.served_by == ""
    made.served_by = "e1"
    assert kept.find("req-1").served_by == "e1"  # type: ignore[union-attr]  # it is there
    assert kept.find("another") is None
    assert kept.find("req-1", "bolt") is None


def test_a_callers_id_is_its_tenants() -> None:
    """A caller that sends another tenant's id, its own or the gateway's, hides nothing of that tenant and sees nothing of it."""
    kept, written = Decisions(), list[Decision]()
    kept.written = written.append
    bolt = decision(routed(2), msgspec.structs.replace(DEMAND, tenant="bolt"), ("req-1",), 1.0, "sim", "chat")
    bolt.caller_id = "mine"
    kept.keep(bolt)
    for number, chosen in enumerate(("mine", "req-1"), 2):
        acme = decision(routed(2), DEMAND, (f"req-{number}",), 2.0, "sim", "chat")
        acme.caller_id = chosen
        kept.keep(acme)
    assert [kept.find("req-1").tenant, kept.find("mine", "bolt").request_id] == ["bolt", "req-1"]  # type: ignore[union-attr]
    assert [kept.find("mine", "acme").request_id, kept.find("req-1", "acme")] == ["req-2", None]  # type: ignore[union-attr]
    assert kept.find("mine") is None
    assert len(written) == 3


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


BLOCKED = GuardRecord("block", "keys", "input", False, (GuardCount("keys", "aws_key", "block", "input", 1),), (), (), "0123")


def test_a_request_that_guard_rules_refused_is_kept_without_a_backend() -> None:
    kept = Decisions()
    refused = Record("mine", 5.0, "guard_blocked", 400, 0.01, 0.01, tenant="acme", model="sim", gateway_id="req-1", guards=BLOCKED)
    kept.end(None, refused)
    found = kept.find("req-1")
    assert found is not None and found == kept.find("mine", "acme")
    assert (found.pool, found.policy, found.contenders, found.reason) == ("", "", (), "refused by guard rules; no backend was asked")
    assert found.guards == "block by keys in input; found keys:aws_key:block:input=1"
    assert found.ended is not None and (found.ended.outcome, found.ended.status) == ("guard_blocked", 400)
    kept.end(None, msgspec.structs.replace(refused, gateway_id="req-2", guards=msgspec.structs.replace(BLOCKED, word="passed", by="")))
    assert kept.find("req-2") is None, "it failed for another reason"


def test_what_guard_rules_said_of_a_placed_request_is_kept_with_its_decision() -> None:
    kept = Decisions()
    made = decision(routed(2), DEMAND, ("req-1",), 5.0, "sim", "chat")
    kept.keep(made)
    cut = msgspec.structs.replace(BLOCKED, direction="output", late=True)
    kept.end(made, Record("req-1", 5.0, "ok", 200, 0.01, 0.01, tenant="acme", guards=cut))
    found = kept.find("req-1")
    assert found is not None and found.policy == "least_load"
    assert found.guards == "block by keys in output; after the text had been sent; found keys:aws_key:block:input=1"
