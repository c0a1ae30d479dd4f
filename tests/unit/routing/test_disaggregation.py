"""Laws of splitting a request: when it pays, onto whom, and that prefill and decode engine are both charged or neither."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from routing.disaggregation import DisaggregationSettings, HandoverTerms, Split, consider, reserve, sides
from routing.fleet import Backend
from routing.load import LoadTable
from routing.ports import RoutingRequest
from routing.rates import Rates

TERMS = HandoverTerms(kv_bytes_token=100_000, bandwidth_bytes_s=10e9, fixed_s=0.01)
RATES = Rates(0.0, 1e-4, 0.0, 0.01, 1e-4, 1e-8)
"""10,000 tokens a second; a step of 10 ms and 0.1 ms for each sequence."""

PROMPT = 10_000
TRANSFER_S = PROMPT * 100_000 / 10e9 + 0.01
STALL_S = PROMPT * 1e-4


def backends(**roles: str) -> list[Backend]:
    return [Backend(name, "chat", role=role) for name, role in roles.items()]


def load_table(*names: str, rates: Rates = RATES, **running: int) -> LoadTable:
    made = LoadTable()
    for name in names:
        made.add(name, rates)
    for name, count in running.items():
        told(made, name, running=count)
    return made


def told(on: LoadTable, name: str, **values: Any) -> None:
    on.report(
        name, **{"running": 0, "waiting": 0, "queued_tokens": 0, "kv_usage": 0.0, "kv_capacity": 1e6, **values}, read_at=1.0, asked_at=1.0
    )


def split(
    among: list[Backend], on: LoadTable, *, held: dict[str, float] | None = None, terms: HandoverTerms = TERMS, tokens: int = PROMPT
) -> Split:
    on.settle()
    return consider(RoutingRequest(tokens, output_tokens=200), among, on, held or {}, terms, random.Random(1))


MIXED = {"w": "both", "p": "prefill", "d": "decode"}


def test_who_can_be_what() -> None:
    found = sides(backends(**MIXED), TERMS)
    assert [[b.id for b in one] for one in found] == [["w"], ["d"], ["p"]]
    found = sides(backends(**MIXED), HandoverTerms(1, 1.0, pairs_whole=True))
    assert [[b.id for b in one] for one in found] == [["w"], ["w", "d"], ["w", "p"]]


@pytest.mark.parametrize("running", range(5))
def test_it_is_split_exactly_when_others_would_lose_more_than_handing_over_takes(running: int) -> None:
    found = split(backends(**MIXED), load_table("w", "p", "d", w=running))
    assert (found.decode is not None) == (running * STALL_S > TRANSFER_S)
    assert found.why.startswith("split: a stall of" if found.decode else "whole: a stall of")


def test_a_long_context_is_reckoned_with_at_its_mean() -> None:
    bent = load_table("w", "p", "d", rates=Rates(0.0, 0.0, 1e-8, 0.01, 1e-4, 1e-8), w=1)
    found = split(backends(**MIXED), bent, held={"w": 4000.0, "p": 4000.0})
    # 6,000 tokens at contexts of 4,000 to 10,000: what calibration learns the rate from, and `predicted_latency` reckons with
    assert "a stall of 0.42 s for 1 requests" in found.why
    assert dict(found.prefills[0].terms)["prefill_s"] == pytest.approx(6000 * 7000 * 1e-8)


def test_a_slow_network_makes_it_not_pay() -> None:
    slow = HandoverTerms(kv_bytes_token=100_000, bandwidth_bytes_s=1e8)
    assert split(backends(**MIXED), load_table("w", "p", "d", w=4), terms=slow).decode is None
    assert split(backends(**MIXED), load_table("w", "p", "d", w=40), terms=slow).decode is not None


@pytest.mark.parametrize(
    ("tokens", "held", "splits"), [(2047, 0, False), (2048, 0, True), (10_000, 4_999, True), (10_000, 5_001, False), (10_000, 9_999, False)]
)
def test_short_and_mostly_cached_prompts_are_served_whole(tokens: int, held: int, splits: bool) -> None:
    found = split(backends(**MIXED), load_table("w", "p", "d", w=50), held={"w": held}, tokens=tokens)
    assert (found.decode is not None) == splits


def test_where_nobody_serves_whole_everything_is_split() -> None:
    found = split(backends(p="prefill", d="decode"), load_table("p", "d"), tokens=3)
    assert found.decode is not None
    assert found.why == "split: no backend serves requests whole"


@pytest.mark.parametrize("roles", [{"w": "both"}, {"w": "both", "p": "prefill"}, {"w": "both", "d": "decode"}, {"p": "prefill"}])
def test_without_prefill_and_decode_engines_nothing_is_split(roles: dict[str, str]) -> None:
    found = split(backends(**roles), load_table(*roles, **({"w": 99} if "w" in roles else {})))
    assert found.decode is None
    assert found.prefill == ()


def test_two_that_serve_whole_can_be_a_pair_where_engines_can_and_nobody_is_its_own_counterpart() -> None:
    pairs = HandoverTerms(100_000, 10e9, pairs_whole=True)
    found = split(backends(a="both", b="both"), load_table("a", "b", a=9, b=9), terms=pairs)
    assert found.decode is not None
    assert {found.decode.id, *[one.id for one in found.prefill]} == {"a", "b"}
    assert split(backends(a="both"), load_table("a", a=9), terms=pairs).decode is None
    assert split(backends(a="both", b="both"), load_table("a", "b", a=9, b=9)).decode is None


def test_generating_goes_where_memory_and_steps_are_least() -> None:
    among = backends(p="prefill", d1="decode", d2="decode")
    on = load_table("p", "d1", "d2")
    told(on, "d1", kv_usage=0.9)
    told(on, "d2", kv_usage=0.1)
    assert split(among, on).decodes[0].backend == "d2"
    on = load_table("p", "d1", "d2")
    told(on, "d1", running=3)
    told(on, "d2", running=200)
    assert split(among, on).decodes[0].backend == "d1"


def test_who_has_no_room_for_prompt_and_answer_does_not_generate() -> None:
    on = load_table("p", "d1", "d2")
    told(on, "d1", kv_capacity=PROMPT + 199.0)
    told(on, "d2", kv_usage=0.5, kv_capacity=1e6)
    found = split(backends(p="prefill", d1="decode", d2="decode"), on)
    assert found.decode is not None
    assert found.decode.id == "d2"
    assert "no room for 10,200 tokens" in found.sentence()
    told(on, "d2", kv_usage=1.0)
    assert split(backends(p="prefill", d1="decode", d2="decode"), on).decode is None


def test_the_prompt_goes_where_its_first_token_comes_soonest() -> None:
    among = backends(p1="prefill", p2="prefill", d="decode")
    on = load_table("p1", "p2", "d")
    told(on, "p1", queued_tokens=50_000)
    assert split(among, on).prefills[0].backend == "p2"
    on = load_table("p1", "p2", "d")
    assert [one.backend for one in split(among, on, held={"p1": 9_000.0}).prefills] == ["p1", "p2"]
    assert split(among, on, held={"p1": 9_000.0}).uncached_tokens == 1_000


@pytest.mark.req("ROUTERS-24")
def test_what_generating_backends_were_handed_is_no_prefix_unless_it_is_reused() -> None:
    among = backends(w="both", p="prefill", d1="decode", d2="decode")
    on = load_table("w", "p", "d1", "d2", w=3)
    without, holding = split(among, on), split(among, on, held={"d1": 9_999.0, "d2": 9_999.0})
    assert without == holding
    # with reuse it saves the transfer, and nothing else
    slow = HandoverTerms(100_000, 2e8, decode_reuses=True)
    assert split(among, on, terms=slow).decode is None
    assert split(among, on, held={"d1": 9_999.0, "d2": 9_999.0}, terms=slow).decode is not None


def test_prefill_and_decode_are_explained() -> None:
    sentence = split(backends(**MIXED), load_table("w", "p", "d", w=4)).sentence()
    assert sentence.startswith("split: a stall of 4 s for 4 requests on w, 0.11 s of handing over; decode d (memory_s=")
    assert "; prefill p (queued_s=0, prefill_s=1)" in sentence


def test_further_backends_that_generate_get_their_prompts_computed_too() -> None:
    among = backends(w="both", p="prefill", d1="decode", d2="decode")
    found = split(among, load_table("w", "p", "d1", "d2", w=9))
    assert {b.id: [one.id for one in found.prefills_for(b)] for b in among} == {"w": [], "p": [], "d1": ["p"], "d2": ["p"]}
    whole = split(among, load_table("w", "p", "d1", "d2"))
    assert all(whole.prefills_for(b) == () for b in among)


def test_a_reservation_is_on_both_and_is_given_back_by_both() -> None:
    on = load_table("p", "d")
    request = RoutingRequest(PROMPT, output_tokens=200)
    taken = reserve(on, "p", "d", 8_000, request, 2.0)
    p, d = on.row_of["p"], on.row_of["d"]
    on.settle()
    assert (on.in_flight("p"), on.in_flight("d")) == (1, 1)
    assert (on.queue_tokens[p], on.queue_tokens[d]) == (8_000, 0)
    assert (on.kv_tokens[p], on.kv_tokens[d]) == (PROMPT, PROMPT + 200)
    taken.prefilled()
    assert (on.queue_tokens[p], on.kv_tokens[p]) == (0, PROMPT)
    taken.handed_over()
    assert (on.in_flight("p"), on.in_flight("d")) == (0, 1)
    for _ in range(2):
        taken.release()
        assert on.total() == 0


@pytest.mark.req("ROUTERS-24")
@pytest.mark.parametrize("missing", ["p", "d"])
def test_when_one_half_cannot_be_reserved_neither_is(missing: str) -> None:
    on = load_table(*({"p", "d"} - {missing}))
    with pytest.raises(KeyError):
        reserve(on, "p", "d", 8_000, RoutingRequest(PROMPT), 2.0)
    assert on.total() == 0


def test_whatever_happens_in_whatever_order_nothing_is_left_and_nothing_negative() -> None:
    rng = random.Random(3)
    for _ in range(300):
        on = load_table("p", "d")
        taken = [reserve(on, "p", "d", rng.randrange(PROMPT), RoutingRequest(PROMPT), 1.0) for _ in range(3)]
        steps = [rng.choice((one.prefilled, one.handed_over, one.release)) for one in taken for _ in range(5)] + [
            one.release for one in taken
        ]
        rng.shuffle(steps)
        for step in steps:
            step()
            assert min(on.queue_tokens + on.kv_tokens + on.requests) >= 0
        assert on.total() == 0


def test_bandwidth_is_written_in_gigabytes() -> None:
    terms = DisaggregationSettings(kv_bytes_token=131_072, bandwidth_gb_s=50).terms(pairs_whole=True)
    assert terms == HandoverTerms(131_072, 50e9, pairs_whole=True)


def test_defaults_are_the_routers_own() -> None:
    terms, given = HandoverTerms(1, 1e9), DisaggregationSettings(kv_bytes_token=1, bandwidth_gb_s=1).terms(pairs_whole=False)
    assert given == terms


@pytest.mark.parametrize("wrong", [{"kv_bytes_token": 0}, {"bandwidth_gb_s": 0}, {"min_uncached_share": 1.1}, {"fixed_s": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        DisaggregationSettings.model_validate({"kv_bytes_token": 1, "bandwidth_gb_s": 1, **wrong})
