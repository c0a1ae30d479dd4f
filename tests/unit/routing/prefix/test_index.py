import random
from collections import Counter, OrderedDict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.chain import of_tokens, root
from routing.prefix.index import NO_MATCH, PREDICTION_TTL_S, IndexMatch, PrefixIndex, common

SECRET = b"0123456789abcdef"
IDS = ("a", "b", "c")
Figure = Callable[[str, object], None]


def prompt(seed: int, blocks: int, salt: str = "") -> list[int]:
    return of_tokens(root("m", "", salt, SECRET), [seed + 1, *range(blocks * 64 - 1)])


CHAINS = [[*range(100, 100 + n)] for n in range(7)] + [[100, 101, 102, *range(200, 200 + n)] for n in range(5)]
which, who = st.integers(0, len(CHAINS) - 1), st.sampled_from(IDS)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("stored"), who, which),
        st.tuples(st.just("removed"), who, which),
        st.tuples(st.just("cleared"), who, st.just(0)),
        st.tuples(st.just("forget"), who, st.just(0)),
        st.tuples(st.just("predict"), who, which),
        st.tuples(st.just("withdraw"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.just(""), st.integers(0, 3)),
    ),
    max_size=50,
)


class Told:
    """What the index was told, kept the long way."""

    def __init__(self) -> None:
        self.copies = {one: Counter[int]() for one in IDS}
        self.sent: list[tuple[str, list[int], float, object]] = []

    def held(self, one: str, chain: list[int], now: float) -> int:
        soon = {block for who, blocks, until, _ in self.sent if who == one and now < until for block in blocks}
        return next((at for at, block in enumerate(chain) if not self.copies[one][block] and block not in soon), len(chain))

    def over(self, one: str) -> None:
        self.copies[one].clear()
        self.sent = [sent for sent in self.sent if sent[0] != one]


@settings(max_examples=300, deadline=None)
@given(OPS)
def test_a_match_is_what_events_and_predictions_say_and_no_more(ops: list[tuple[str, str, int]]) -> None:
    index, told, now = PrefixIndex(10_000), Told(), 0.0
    for op, one, n in ops:
        if op == "stored":
            index.stored(one, CHAINS[n])
            told.copies[one].update(CHAINS[n])
        elif op == "removed":
            index.removed(one, CHAINS[n])
            told.copies[one].subtract(CHAINS[n])
            told.copies[one] = +told.copies[one]
        elif op in ("cleared", "forget"):
            getattr(index, op)(one)
            told.over(one)
        elif op == "predict":
            told.sent.append((one, CHAINS[n], now + PREDICTION_TTL_S, index.predict(one, CHAINS[n], now)))
        elif op == "withdraw" and told.sent:
            index.withdraw(told.sent.pop(n % len(told.sent))[3])  # type: ignore[arg-type]  # what predict gave
        elif op == "wait":
            now += n
        for chain in CHAINS:
            match = index.match(chain, now)
            assert {one: match.held(one) for one in IDS} == {one: told.held(one, chain, now) for one in IDS}
            assert 0 not in match.blocks.values()


@pytest.mark.req("ROUTERS-7")
def test_distinct_prompts_without_end_stay_under_the_bound(record_property: Figure) -> None:
    index, bound = PrefixIndex(20_000), 20_000
    for one in IDS:
        index.size(one, 50_000)
    for seed in range(20_000):
        chain = prompt(seed, 8)
        one = IDS[seed % 3]
        index.confirm(index.predict(one, chain, seed / 100), seed / 100)
        assert index.blocks <= bound
        assert index.predicted <= bound // 8
        assert index.match(chain, seed / 100).held(one) == 8
    assert index.evicted
    record_property("figure", f"160,000 distinct blocks from 20,000 prompts: at most {bound:,} kept at every insert; 10 M: bench.decision")


@pytest.mark.req("ROUTERS-8")
def test_what_is_stored_and_removed_again_leaves_nothing(record_property: Figure) -> None:
    index, rng = PrefixIndex(100_000), random.Random(1)
    stored: list[tuple[str, list[int]]] = []
    for _ in range(20_000):
        if stored and rng.random() < 0.5:
            one, chain = stored.pop(rng.randrange(len(stored)))
            index.removed(one, chain)
        else:
            chain = prompt(rng.randrange(500), rng.randrange(1, 8))
            stored.append((rng.choice(IDS), chain))
            index.stored(*stored[-1])
    peak = index.blocks
    for one, chain in stored:
        index.removed(one, chain)
    assert index.blocks == 0
    record_property("figure", f"20,000 random steps, {peak:,} blocks at the end of them, 0 once the rest is removed")


@pytest.mark.req("ROUTERS-9")
def test_adapters_and_backends_that_come_and_go_leave_nothing(record_property: Figure) -> None:
    index = PrefixIndex(100_000)
    index.stored("stays", prompt(0, 8))
    for adapter in range(10_000):
        chain = of_tokens(root("m", f"digest-{adapter}", "", SECRET), range(256))
        index.stored("stays", chain)
        index.removed("stays", chain)
    assert index.blocks == 8
    for life in range(1_000):
        one = f"gpu-{life}"
        index.size(one, 100)
        index.stored(one, prompt(life, 20))
        index.touch(one, prompt(life, 20), 0.0)
        index.predict(one, prompt(life, 20), life)
        index.forget(one)
    assert index.backends == 1
    assert index.blocks <= 8 + 3_000, "what forgotten backends held is swept as blocks come in"
    assert index.predicted <= (PREDICTION_TTL_S + 1) * 20
    index.stored("stays", prompt(0, 8) * 400)
    assert index.blocks == 8
    record_property("figure", "10,000 adapters and 1,000 backends later: 1 backend, 8 blocks, as at the beginning")


@pytest.mark.req("ROUTERS-10")
def test_a_forgotten_backend_matches_nothing_and_comes_back_empty(record_property: Figure) -> None:
    index, chain = PrefixIndex(100_000), prompt(1, 50)
    index.size("a", 1_000)
    index.stored("a", chain)
    index.stored("a", chain)
    index.touch("a", chain, 0.0)
    late = index.predict("a", chain, 0.0)
    index.forget("a")
    assert index.match(chain, 0.0) == NO_MATCH
    index.stored("a", chain[:1])
    index.confirm(late, 0.0)
    index.withdraw(late)
    index.removed("a", chain[1:])
    assert index.match(chain, 0.0).blocks == {"a": 1}
    index.removed("a", chain[:1])
    assert index.match(chain, 0.0) == NO_MATCH, "copies of a life before do not count"
    record_property("figure", "0 blocks at once from events, predictions and approximate use; the same id begins with 0")


def test_forgetting_takes_no_longer_for_a_backend_that_holds_much() -> None:
    index = PrefixIndex(1_000_000)
    for seed in range(2_000):
        index.stored("a", prompt(seed, 10))
    before = index.blocks
    index.forget("a")
    assert index.blocks == before, "nothing is gone through"
    assert index.match(prompt(1, 10), 0.0) == NO_MATCH


@pytest.mark.req("ROUTERS-13")
@pytest.mark.req("ROUTERS-28")
@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=4), min_size=2, max_size=6, unique=True), st.integers(1, 6))
def test_a_tenant_matches_nothing_of_another(salts: list[str], blocks: int) -> None:
    index = PrefixIndex(10_000)
    for salt in salts[1:]:
        index.stored("a", prompt(0, blocks, salt))
        index.predict("b", prompt(0, blocks, salt), 0.0)
    probe = prompt(0, blocks, salts[0])
    assert index.match(probe, 0.0) is index.match(prompt(99, blocks, salts[0]), 0.0) is NO_MATCH, "as a prompt that nobody ever sent"
    assert index.match(prompt(0, blocks, salts[1]), 0.0).blocks == {"a": blocks, "b": blocks}


@pytest.mark.req("ROUTERS-14")
def test_siblings_of_a_burst_find_the_prompt_that_is_on_its_way(record_property: Figure) -> None:
    index, ids = PrefixIndex(100_000), [f"gpu-{n}" for n in range(8)]
    chain, load, uncached = prompt(1, 20_000 // 64), dict.fromkeys(ids, 0), 0
    for sibling in range(32):
        now = sibling * 0.05 / 32
        match = index.match(chain, now, ids)
        to = max(ids, key=lambda one: (match.held(one), -load[one]))
        uncached += len(chain) - match.held(to)
        load[to] += 1
        index.predict(to, chain, now)
    assert uncached <= 2 * len(chain)
    assert sum(1 for n in load.values() if n) <= 2
    record_property("figure", f"32 prompts of 20,000 tokens in 50 ms: {uncached * 64:,} tokens uncached by the index, 1 backend prefills")


@pytest.mark.req("ROUTERS-15")
def test_a_prediction_is_over_when_the_dispatch_fails_or_after_three_seconds(record_property: Figure) -> None:
    index, chain = PrefixIndex(10_000), prompt(1, 20)
    failed = index.predict("a", chain, 0.0)
    sibling = index.predict("a", chain[:12], 0.0)
    assert index.match(chain, 0.0).held("a") == 20
    index.withdraw(failed)
    assert index.match(chain, 0.0).held("a") == 12, "the sibling's part stays"
    index.withdraw(sibling)
    assert index.match(chain, 0.0) is NO_MATCH
    assert index.predicted == 0
    index.predict("a", chain, 10.0)
    assert index.match(chain, 12.999).held("a") == 20
    assert index.match(chain, 13.0) is NO_MATCH
    record_property("figure", "0 blocks at once after a failed dispatch, 0 after 3.0 s")


def test_an_engine_without_events_is_taken_to_hold_what_it_answered_as_far_as_it_has_room() -> None:
    index = PrefixIndex(10_000)
    index.size("a", 100)
    for seed in range(30):
        index.confirm(index.predict("a", prompt(seed, 10), 0.0), 0.5)
    held = [index.match(prompt(seed, 10), 60.0).held("a") for seed in range(30)]
    assert held == [0] * 21 + [10] * 9 or held == [0] * 20 + [10] * 10
    index.cleared("a")
    assert index.match(prompt(29, 10), 60.0) is NO_MATCH
    index.touch("a", prompt(29, 10), 60.0)
    assert index.match(prompt(29, 10), 60.0).held("a") == 10, "its size outlives what it held"
    index.size("a", 0)
    assert index.match(prompt(29, 10), 60.0) is NO_MATCH
    with pytest.raises(ValueError, match="-1 blocks"):
        index.size("a", -1)


def test_only_events_make_a_block_told() -> None:
    index, chain = PrefixIndex(10_000), prompt(1, 10)
    index.predict("a", chain, 0.0)
    index.size("b", 100)
    index.touch("b", chain, 0.0)
    index.stored("c", chain[:1])
    assert [one for one in ("a", "b", "c", "d") if index.stored_by_events(one, chain[0])] == ["c"]
    index.cleared("c")
    assert not index.stored_by_events("c", chain[0])


def test_with_events_an_answer_is_no_evidence() -> None:
    index, chain = PrefixIndex(10_000), prompt(1, 10)
    index.confirm(index.predict("a", chain, 0.0), 0.1)
    index.touch("a", chain, 0.1)
    assert index.match(chain, PREDICTION_TTL_S) is NO_MATCH


def test_what_events_cannot_tell_of_is_taken_to_be_held_once_it_was_answered() -> None:
    """A prompt with an image beside an engine with events: until as many other blocks were stored as the cache holds."""
    index, image = PrefixIndex(10_000), prompt(1, 10)
    index.size("a", 80, exact=True)
    index.confirm(index.predict("a", prompt(2, 10), 0.0), 0.1)
    index.touch("a", prompt(2, 10), 0.1)
    assert index.match(prompt(2, 10), 60.0) is NO_MATCH, "events tell of this one"
    index.confirm(index.predict("a", image, 0.0), 0.1, told=False)
    assert index.match(image, 60.0).held("a") == 10
    assert not index.stored_by_events("a", image[0])
    index.stored("a", prompt(3, 60))
    index.took_in("a", 60)
    index.touch("b", image, 0.0)
    assert index.match(image, 60.0).blocks == {"a": 10}
    index.took_in("a", 11)
    assert index.match(image, 60.0) is NO_MATCH
    assert index.match(prompt(3, 60), 60.0).held("a") == 60
    index.confirm(index.predict("a", image, 60.0), 60.1, told=False)
    index.cleared("a")
    assert index.match(image, 64.0) is NO_MATCH
    index.confirm(index.predict("a", prompt(2, 10), 64.0), 64.1)
    index.confirm(index.predict("a", image, 64.0), 64.1, told=False)
    assert (index.match(image, 70.0).held("a"), index.match(prompt(2, 10), 70.0)) == (10, NO_MATCH), "its size outlives what it held"


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 25)), max_size=60), st.integers(40, 200))
def test_an_image_prompt_is_claimed_no_longer_than_an_lru_cache_would_hold_it(steps: list[tuple[bool, int, int]], capacity: int) -> None:
    """Text is told by events, image prompts are not: what is claimed of the latter is held by a true LRU cache that sees both."""
    index, lru, stored = PrefixIndex(100_000), OrderedDict[int, None](), set[int]()
    index.size("a", capacity, exact=True)
    for image, seed, length in steps:
        chain = prompt(seed + 100 * image, length)
        if image:
            index.confirm(index.predict("a", chain, 0.0), 0.0, told=False)
        else:
            new = [block for block in chain if block not in stored]
            stored.update(new)
            index.stored("a", new)
            index.took_in("a", len(new))
            chain = new  # a block found in the cache again pushes nothing out
        for block in reversed(chain):
            lru[block] = None
            lru.move_to_end(block)
        while len(lru) > capacity:
            lru.popitem(last=False)
        for other in range(31):
            asked = prompt(other + 100, 25)
            held = index.match(asked, 60.0).held("a")
            assert all(block in lru for block in asked[:held])


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([f"gpu-{n}" for n in range(12)]), st.integers(1, 9)), st.integers(1, 12))
def test_what_is_common_is_held_by_nine_of_ten(held: dict[str, int], fleet: int) -> None:
    among = [f"gpu-{n}" for n in range(fleet)]
    blocks = common(held, among)
    holding = sum(1 for one in among if held.get(one, 0) >= blocks)
    assert blocks == 0 or (holding >= 0.9 * fleet and holding >= 2)
    assert sum(1 for one in among if held.get(one, 0) > blocks) < max(2, 0.9 * fleet)


def test_what_everyone_holds_is_said() -> None:
    index, shared = PrefixIndex(10_000), prompt(1, 10)
    for n in range(10):
        index.stored(f"gpu-{n}", shared[: 6 + n] if n else shared[:1])
    match = index.match(shared, 0.0)
    assert match.held("gpu-9") == 10
    assert match.common == 7, "gpu-0 alone is behind"
    assert index.match(shared, 0.0, ["gpu-4", "gpu-5"]).common == 10
    assert index.match(shared, 0.0, ["gpu-4", "elsewhere"]).common == 0
    assert index.match(shared, 0.0, ["gpu-4"]).common == 0, "one backend has nobody to share with"


def test_a_match_is_empty_for_a_prompt_shorter_than_a_block() -> None:
    assert PrefixIndex(10).match([], 0.0) == IndexMatch({}) == NO_MATCH


def test_what_is_dispatched_outlives_what_is_not_at_the_bound() -> None:
    index = PrefixIndex(1_000)
    hot = prompt(0, 10)
    index.stored("a", hot)
    for seed in range(1, 1_000):
        index.stored("a", prompt(seed, 8))
        index.predict("b", hot, seed)
        assert index.match(hot, seed).held("a") == 10
    assert index.evicted


def test_copies_of_what_was_dropped_at_the_bound_do_not_hold_it_later() -> None:
    index, chain = PrefixIndex(100), prompt(0, 5)
    index.stored("a", chain)
    index.stored("a", chain)
    for seed in range(1, 50):
        index.stored("a", prompt(seed, 8))
    assert index.match(chain, 0.0) is NO_MATCH
    index.stored("a", chain)
    index.removed("a", chain)
    assert index.match(chain, 0.0) is NO_MATCH
