"""Laws of the order in which waiting requests are served: nobody starves, nobody is served much more, nothing grows past its bounds."""

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain.priority import Class
from routing.fair_queue import ONE_BODY_BYTES, QUANTUM, RANKS, SHARE, FairQueue, QueueBounds, QueuedRequest
from routing.fair_tier import AGEING, OLDEST_EVERY, in_order_s

WIDE = QueueBounds(10**6, 10**12, 10**6, 10**12)
DEAREST = 10_000


def waiting(tenant="a", tier=Class.DEFAULT, cost=1000, *, retry=False, held=0, deadline=inf, size_bytes=100):
    return QueuedRequest(tenant, tier, retry, cost, deadline, 0.0, size_bytes, held)


def served(queue, can_place=lambda one: True):
    """Everybody, in order."""
    order = []
    while (one := queue.next(can_place)) is not None:
        queue.take(one)
        order.append(one)
    return order


def put_all(queue, *many):
    for one in many:
        assert queue.put(one).accepted
    return queue


def jain(amounts):
    return sum(amounts) ** 2 / (len(amounts) * sum(one * one for one in amounts))


@st.composite
def requests(draw, tenants="abc"):
    return waiting(
        draw(st.sampled_from(tenants)), draw(st.integers(0, 3)), draw(st.integers(1, DEAREST)), retry=draw(st.booleans()),
        held=draw(st.integers(0, 3)) * 64, deadline=draw(st.integers(0, 5)) * 1.0, size_bytes=draw(st.integers(1, 500)),
    )  # fmt: skip


def sized(size_s, at=0.0, tenant="a", deadline=inf):
    place = waiting(tenant, deadline=deadline)
    place.order_s = in_order_s(size_s, at)
    return place


def test_class_then_first_tries_then_shortest_with_ageing_then_longest_prefix_then_first_come():
    last = waiting(tier=Class.BATCH)
    again = waiting(retry=True, held=9999)
    long, short = sized(0.5), sized(0.1)
    held = waiting(held=640)
    first, second = waiting(tier=Class.CRITICAL), waiting(tier=Class.CRITICAL)
    queue = put_all(FairQueue(WIDE), last, again, long, short, held, first, second)
    assert queue.by_tier() == [2, 0, 4, 1]
    assert served(queue) == [first, second, held, short, long, again, last]


def test_a_deadline_gives_no_place():
    late, soon = sized(0.1, deadline=99.0), sized(0.2, deadline=1.0)
    assert served(put_all(FairQueue(WIDE), soon, late)) == [late, soon]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 60)), min_size=2, max_size=30), st.floats(0, 5))
def test_nothing_waits_behind_what_comes_more_than_its_size_over_the_ageing_later(others, size_s):
    """However short the later ones are: so a request of two seconds lets those of ten seconds pass it, and none after."""
    mine = sized(size_s)
    order = served(put_all(FairQueue(WIDE), *[sized(size, at) for size, at in others if at > size_s / AGEING + 1e-6], mine))
    assert order[0] is mine


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 9)), min_size=30, max_size=60))
def test_sizes_do_not_change_the_shares_of_tenants(drawn):
    """Within a quantum and a request, in tokens: a tenant of short requests is served no more than others."""
    queue = FairQueue(WIDE)
    for tenant, size_s in drawn:
        queue.put(sized(size_s, tenant=tenant))
    got = dict.fromkeys("abc", 0)
    while all(queue.tenant_count(tenant) for tenant in "abc"):
        one = queue.next(lambda one: True)
        queue.take(one)
        got[one.tenant] += one.cost
        waiting_now = [got[tenant] for tenant in "abc" if queue.tenant_count(tenant)]
        assert max(waiting_now) - min(waiting_now) <= 2 * (QUANTUM + 1000)


def test_what_the_caches_hold_by_now_counts():
    one, other = waiting(), waiting()
    queue = put_all(FairQueue(WIDE), one, other)
    queue.hold(other, 640)
    queue.hold(other, 640)
    assert (other.held, served(queue)) == (640, [other, one])


def test_who_does_not_wait_can_neither_be_taken_nor_removed():
    queue, one, other = FairQueue(WIDE), waiting(), waiting()
    put_all(queue, one, other)
    queue.remove(one)
    for call in (queue.take, queue.remove, lambda gone: queue.hold(gone, 5)):
        with pytest.raises(KeyError):
            call(one)
    assert (len(queue), queue.size_bytes) == (1, 100)


@given(st.lists(requests(), max_size=60))
def test_work_conserving_deterministic_and_every_request_exactly_once(many):
    copies = [waiting(m.tenant, m.tier, m.cost, retry=m.retry, held=m.held, deadline=m.deadline) for m in many]
    one, other = served(put_all(FairQueue(WIDE), *many)), served(put_all(FairQueue(WIDE), *copies))
    assert [m.seq for m in one] == [m.seq for m in other]
    assert sorted(m.seq for m in one) == list(range(1, len(many) + 1))


@given(st.lists(requests("abcdefghij"), min_size=1, max_size=150), st.data())
def test_whoever_can_be_placed_is_found_soon_whoever_cannot(many, data):
    queue = put_all(FairQueue(WIDE), *many)
    placeable = data.draw(st.sampled_from(many))
    asked = [0]

    def can_place(one):
        asked[0] += 1
        return one is placeable

    rows = {(one.tenant, one.tier, one.retry) for one in many}
    calls = 0
    while (found := queue.next(can_place)) is None:
        calls += 1
        assert asked[0] <= RANKS * 16
        asked[0] = 0
        assert calls <= (len(rows) / 4 + 1) * (len(many) / 4 + 1)
    assert found is placeable


@given(st.lists(requests(), max_size=40), st.lists(st.tuples(st.integers(0, 40), requests("abcd")), max_size=10))
def test_who_is_removed_leaves_no_trace_in_the_order(many, passing):
    """Nor does one that comes and goes while others are served."""
    plain = FairQueue(WIDE)
    copies = [waiting(m.tenant, m.tier, m.cost, retry=m.retry, held=m.held, deadline=m.deadline) for m in many]
    expected = [copies.index(one) for one in served(put_all(plain, *copies))]
    queue, order = put_all(FairQueue(WIDE), *many), []
    at = 0
    while (one := queue.next(lambda one: True)) is not None:
        for when, extra in passing:
            if when == at:
                put_all(queue, extra)
                queue.remove(extra)
        queue.take(one)
        order.append(many.index(one))
        at += 1
    assert order == expected and len(queue) == queue.size_bytes == 0


def backlogged(queue, tenants, rng, dearest):
    """What each of some always backlogged tenants was charged, after each of 400 requests."""
    charged = dict.fromkeys(tenants, 0)
    for _ in range(5):
        put_all(queue, *(waiting(tenant, cost=rng.randint(1, dearest), held=rng.randrange(9)) for tenant in tenants))
    for _ in range(400):
        one = queue.next(lambda one: True)
        queue.take(one)
        put_all(queue, waiting(one.tenant, cost=rng.randint(1, dearest), held=rng.randrange(9)))
        charged[one.tenant] += one.cost
        yield dict(charged)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(500, 50_000), st.integers(1, DEAREST), st.integers(0, 2**32))
def test_two_backlogged_tenants_differ_by_no_more_than_the_bound_over_any_stretch(tenants, quantum, dearest, seed):
    """Whatever they ask for; over any stretch, so the charged service of any two moments is compared."""
    names = "abcdef"[:tenants]
    queue = FairQueue(WIDE, quantum)
    history = list(backlogged(queue, names, random.Random(seed), dearest))
    for tenant in names[1:]:
        lead = [charged["a"] - charged[tenant] for charged in history]
        assert max(lead) - min(lead) <= 2 * (quantum + dearest)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_equal_backlogged_tenants_get_equal_service_by_what_they_really_used(seed):
    """Although one tenant's estimates are always four times too low, and another's are twice too high."""
    rng = random.Random(seed)
    queue, off = FairQueue(WIDE), {"a": 4.0, "b": 0.5, "c": 1.0, "d": 1.0}
    given_tokens, under_way = dict.fromkeys(off, 0), []
    for tenant in off:
        put_all(queue, *(waiting(tenant, cost=rng.randint(1, 3000)) for _ in range(4)))
    for _ in range(3000):
        one = queue.next(lambda one: True)
        queue.take(one)
        put_all(queue, waiting(one.tenant, cost=rng.randint(1, 3000)))
        under_way.append(one)
        if len(under_way) > 8:
            ended = under_way.pop(0)
            used = int(ended.cost * off[ended.tenant])
            queue.settle(ended, used)
            given_tokens[ended.tenant] += used
    assert jain(given_tokens.values()) >= 0.99


def test_a_tenant_saves_nothing_up_while_it_waits_for_nothing():
    queue = FairQueue(WIDE, 1000)
    for _ in range(200):
        queue.put(waiting("busy"))
    for _ in range(100):
        queue.take(queue.next(lambda one: True))
    put_all(queue, *(waiting("back") for _ in range(100)))
    first = [one.tenant for one in served(queue)[:40]]
    assert 18 <= first.count("back") <= 22


def test_leaving_and_coming_back_does_not_wash_off_what_a_tenant_was_served():
    queue = put_all(FairQueue(WIDE, 1000), *(waiting("steady") for _ in range(50)))
    counts = {"steady": 0, "hopper": 0}
    for _ in range(40):
        put_all(queue, waiting("hopper", cost=3000))
        for _ in range(2):
            one = queue.next(lambda one: True)
            queue.take(one)
            counts[one.tenant] += one.cost
            if one.tenant == "steady":
                put_all(queue, waiting("steady"))
    assert abs(counts["steady"] - counts["hopper"]) <= 2 * (1000 + 3000)


@pytest.mark.parametrize("lower", [(Class.BATCH, False), (Class.DEFAULT, False), (Class.INTERACTIVE, True)])
def test_lower_ranks_get_their_share_and_no_more_while_a_higher_one_never_empties(lower):
    queue = FairQueue(WIDE)
    tier, retry = lower
    low = [waiting("b", tier, 500, retry=retry) for _ in range(1000)]
    put_all(queue, *low, *(waiting("a", Class.INTERACTIVE, 700) for _ in range(5)))
    totals = {"a": 0, "b": 0}
    for _ in range(5000):
        one = queue.next(lambda one: True)
        queue.take(one)
        totals[one.tenant] += one.cost
        if one.tenant == "a":
            put_all(queue, waiting("a", Class.INTERACTIVE, 700))
    assert totals["b"] / totals["a"] == pytest.approx(SHARE, rel=0.1)


def test_all_lower_ranks_share_in_turn_so_the_lowest_is_served_too():
    queue = FairQueue(WIDE)
    for tier in Class:
        put_all(queue, *(waiting("low", tier, 500, retry=retry) for retry in (False, True) for _ in range(40)))
    waits = {(tier, retry) for tier in Class for retry in (False, True)}
    for _ in range(4000):
        one = queue.next(lambda one: True)
        queue.take(one)
        put_all(queue, waiting("low", one.tier, 500, retry=one.retry))
        waits.discard((one.tier, one.retry))
    assert not waits


def test_a_lower_class_that_waits_alone_or_was_served_in_passing_owes_nothing():
    queue = put_all(FairQueue(WIDE), *(waiting("a", Class.BATCH, 9000) for _ in range(20)))
    served(queue)
    put_all(queue, waiting("a", Class.BATCH), *(waiting("a", Class.CRITICAL, 9000) for _ in range(5)))
    assert [one.tier for one in served(queue, lambda one: one.tier == Class.BATCH)] == [Class.BATCH]
    assert [one.tier for one in served(queue)] == [Class.CRITICAL] * 5


def test_a_cold_request_is_served_although_its_tenant_always_has_a_hotter_one():
    queue = FairQueue(WIDE)
    cold = [waiting(held=0) for _ in range(3)]
    put_all(queue, *cold)
    left = set(cold)
    for _ in range(OLDEST_EVERY * 3 + 1):
        put_all(queue, waiting(held=6400))
        one = queue.next(lambda one: True)
        queue.take(one)
        left.discard(one)
    assert not left


@pytest.mark.parametrize("bound", ["count", "size_bytes", "tenant_count", "tenant_bytes"])
def test_what_does_not_fit_is_refused_by_the_name_of_the_bound(bound):
    queue = FairQueue(QueueBounds(**{"count": 10**6, "size_bytes": 10**9, "tenant_count": 10**6, "tenant_bytes": 10**9, bound: 1}))
    answers = [queue.put(waiting(size_bytes=1)) for _ in range(2)]
    assert [one.full for one in answers] == [None, bound]
    assert not answers[1].accepted and len(queue) == 1


def test_a_higher_class_takes_the_place_of_the_lowest_ranked_of_the_fullest_tenant():
    queue = FairQueue(QueueBounds(4, 10**6, 4, 10**6))
    one, two, three, four = waiting("a", Class.BATCH), waiting("b", Class.BATCH), waiting("b", Class.BATCH, held=64), waiting("b")
    put_all(queue, one, two, three, four)
    assert queue.put(waiting("c", Class.BATCH, retry=True)).full == "count"
    assert queue.put(waiting("c", Class.CRITICAL)).evicted == (two,)
    assert set(queue.put(waiting("c")).evicted) <= {one, three}
    assert len(queue) == 4


def test_a_large_request_takes_the_place_of_as_many_as_it_needs_or_of_none():
    queue = FairQueue(QueueBounds(100, 1000, 100, 1000))
    put_all(queue, *(waiting("a", Class.BATCH) for _ in range(5)), *(waiting("a") for _ in range(5)))
    assert queue.put(waiting("b", Class.CRITICAL, size_bytes=1001)).full == "tenant_bytes"
    assert queue.put(waiting("b", Class.DEFAULT, size_bytes=600)).full == "size_bytes"
    assert len(queue) == 10
    assert len(queue.put(waiting("b", Class.CRITICAL, size_bytes=600)).evicted) == 6
    assert (len(queue), queue.size_bytes) == (5, 1000)


def test_a_tenant_at_its_own_bound_gives_up_its_own_lower_ranked():
    queue = FairQueue(QueueBounds(100, 10**6, 2, 10**6))
    batch = waiting("a", Class.BATCH)
    put_all(queue, waiting("b", Class.BATCH), batch, waiting("a"))
    assert queue.put(waiting("a", Class.CRITICAL)).evicted == (batch,)
    assert queue.put(waiting("a")).full == "tenant_count"
    assert queue.tenant_count("a") == 2 and queue.tenant_count("b") == 1


def test_tenants_of_one_class_share_a_full_queue_evenly_however_many_came_first():
    queue = FairQueue(QueueBounds(13, 10**6, 13, 10**6))
    put_all(queue, *(waiting("first") for _ in range(12)))
    assert queue.put(waiting("first")).full == "count", "the last place is for those whom others give way to"
    for tenant in "bc":
        assert [queue.put(waiting(tenant)).accepted for _ in range(6)].count(True) >= 3
    counts = sorted(queue.tenant_count(tenant) for tenant in ("first", "b", "c"))
    assert counts[-1] - counts[0] <= 1


@settings(max_examples=50, deadline=None)
@given(st.lists(requests("abcd"), min_size=2, max_size=60))
def test_what_is_ahead_is_told_within_the_fairness_bound(many):
    """Against the real order, where all of a class wait from the start; in tokens, for everybody."""
    many = [one for one in many if not one.retry] or [waiting()]
    queue = put_all(FairQueue(WIDE, 2000), *many)
    told = {one.seq: queue.ahead_of(one) for one in many}
    total, off = 0, []
    for one in served(queue):
        off.append(abs(told[one.seq] - total))
        total += one.cost
    assert max(off) <= total
    assert sum(off) / len(off) <= total / 3 + 4 * (2000 + DEAREST)
    assert queue.ahead_of(waiting()) == 0


def test_who_would_come_last_has_everything_ahead_and_who_comes_first_nothing():
    queue = put_all(FairQueue(WIDE), *(waiting("a", cost=1000) for _ in range(10)))
    assert queue.ahead_of(waiting("a")) == 10_000
    assert queue.ahead_of(waiting("a", Class.CRITICAL)) == 0
    assert queue.ahead_of(waiting("a", Class.BATCH)) == 10_000
    assert queue.ahead_of(waiting("b")) <= QUANTUM


def test_what_comes_before_a_low_rank_is_what_its_share_has_to_come_from():
    queue = put_all(FairQueue(WIDE), *(waiting("a", Class.CRITICAL) for _ in range(300)), *(waiting("a") for _ in range(2)))
    assert queue.before(waiting("b", Class.CRITICAL)).until == inf
    told, total = queue.before(waiting("a")).until, 0
    mine = waiting("a")
    put_all(queue, mine)
    while (one := queue.next(lambda one: True)) is not mine:
        queue.take(one)
        total += one.cost
    assert total == pytest.approx(told, rel=0.1)
    assert total < 300_000, "before those of the higher rank that came first"


@pytest.mark.parametrize("bound", ["count", "size_bytes"])
def test_who_would_be_the_first_to_give_way_has_no_place_in_the_last_eighth(bound):
    queue = FairQueue(QueueBounds(**{"count": 10**6, "size_bytes": 10**9, "tenant_count": 10**6, "tenant_bytes": 10**9, bound: 80}))
    put_all(queue, *(waiting("a", Class.INTERACTIVE, size_bytes=1) for _ in range(70)))
    assert queue.put(waiting("a", Class.INTERACTIVE, size_bytes=1)).full == bound
    assert queue.put(waiting("a", Class.BATCH, size_bytes=1)).full == bound
    put_all(queue, *(waiting("b", Class.INTERACTIVE, size_bytes=1) for _ in range(5)))
    put_all(queue, *(waiting("a", Class.CRITICAL, size_bytes=1) for _ in range(5)))
    assert len(queue) == 80
    assert len(queue.put(waiting("a", Class.CRITICAL, size_bytes=1)).evicted) == 1


def test_a_tenant_keeps_some_of_its_places_from_its_own_lower_ranks():
    queue = put_all(FairQueue(QueueBounds(100, 10**6, 16, 10**6)), waiting("a"), *(waiting("a", Class.BATCH) for _ in range(13)))
    assert queue.put(waiting("a", Class.BATCH)).full == "tenant_count"
    assert queue.put(waiting("a")).evicted == ()
    batch = put_all(FairQueue(QueueBounds(100, 10**6, 16, 10**6)), *(waiting("a", Class.BATCH) for _ in range(16)))
    assert batch.put(waiting("a", Class.CRITICAL)).evicted, "where nothing of a higher rank waits nothing is kept"


class Full(RuleBasedStateMachine):
    """Against a plain list: the bounds hold at every step, and nobody is lost or comes twice."""

    bounds = QueueBounds(8, 1500, 5, 1000)

    def __init__(self):
        super().__init__()
        self.queue = FairQueue(self.bounds, 2000)
        self.inside = []
        self.gone = []

    @rule(one=requests())
    def put(self, one):
        put = self.queue.put(one)
        rank = (one.tier, one.retry)
        for out in put.evicted:
            self.inside.remove(out)
            assert (out.tier, out.retry) >= rank and (out.tenant != one.tenant or (out.tier, out.retry) > rank)
        if put.accepted:
            self.inside.append(one)
        else:
            assert not put.evicted

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def remove(self, data):
        one = data.draw(st.sampled_from(self.inside))
        self.inside.remove(one)
        self.queue.remove(one)

    @rule()
    def take(self):
        one = self.queue.next(lambda one: True)
        assert (one is None) == (not self.inside)
        if one is not None:
            self.inside.remove(one)
            self.queue.take(one)
            self.gone.append(one)

    @precondition(lambda self: self.gone)
    @rule(used=st.integers(0, 40_000))
    def settle(self, used):
        self.queue.settle(self.gone.pop(), used)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), held=st.integers(0, 1000))
    def hold(self, data, held):
        self.queue.hold(data.draw(st.sampled_from(self.inside)), held)

    @invariant()
    def bounded_and_counted(self):
        assert len(self.queue) == len(self.inside) <= self.bounds.count
        assert self.queue.size_bytes == sum(one.size_bytes for one in self.inside) <= self.bounds.size_bytes
        for tenant in "abc":
            own = [one.size_bytes for one in self.inside if one.tenant == tenant]
            assert self.queue.tenant_count(tenant) == len(own) <= self.bounds.tenant_count
            assert sum(own) <= self.bounds.tenant_bytes
        assert sum(self.queue.by_tier()) == len(self.inside)


TestFull = Full.TestCase
TestFull.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_the_share_of_the_lower_ranks_let_through_says_so_and_nothing_else_does():
    queue = FairQueue(WIDE)
    put_all(
        queue, *[waiting(tier=Class.CRITICAL, cost=1000) for _ in range(400)], *[waiting("b", Class.BATCH, cost=1000) for _ in range(20)]
    )
    order = served(queue)
    last_critical = max(at for at, one in enumerate(order) if one.tier == Class.CRITICAL)
    between = [one for one in order[:last_critical] if one.tier == Class.BATCH]
    assert between and all(one.by_share for one in between)
    assert not any(one.by_share for one in order if one not in between)


def test_who_gives_its_turn_back_is_charged_once_in_all_and_is_the_first_of_its_tenant():
    queue = FairQueue(WIDE)
    first, later, other = waiting("a", cost=5000), waiting("a", cost=5000, held=640), waiting("b", cost=5000)
    put_all(queue, first, other)
    assert queue.next(lambda one: one is first) is first
    queue.take(first)
    put_all(queue, later)
    queue.settle(first, 0)
    first.back = True
    put_all(queue, first)
    assert served(queue)[0] is first


@pytest.mark.parametrize("processes", [1, 2, 3, 7, 64])
def test_the_queues_of_several_processes_together_have_the_bounds_of_one(processes: int) -> None:
    whole = QueueBounds()
    part = whole.shared_by(processes)
    assert whole.count <= part.count * processes < whole.count + processes
    assert whole.tenant_count <= part.tenant_count * processes < whole.tenant_count + processes
    for name in ("size_bytes", "tenant_bytes"):
        assert getattr(part, name) == max(getattr(whole, name) // processes, ONE_BODY_BYTES)
    assert QueueBounds(0, 0, 1, 1024).shared_by(processes) == QueueBounds(0, 0, 1, 1024), (
        "no room stays no room, and a small one is not divided"
    )


def test_the_tenants_that_wait_are_named_by_class_the_longest_queue_first():
    busy = [*[waiting("busy") for _ in range(3)], waiting("busy", Class.BATCH, retry=True)]
    queue = put_all(FairQueue(WIDE), *busy, waiting("a"), waiting("b", Class.CRITICAL))
    assert queue.by_tenant(9) == [("busy", [0, 0, 3, 1]), ("a", [0, 0, 1, 0]), ("b", [1, 0, 0, 0])]
    assert [tenant for tenant, _ in queue.by_tenant(2)] == ["busy", "a"]
    served(queue)
    assert queue.by_tenant(9) == []
