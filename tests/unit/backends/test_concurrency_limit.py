from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.concurrency_limit import Heard, LimitBounds, Limiter

LOOK_S = 0.1


class Engine:
    """Looks at a limiter ten times a second, with what an engine would say."""

    def __init__(self, bounds: LimitBounds | None = None, processes: int = 1) -> None:
        self.limiter = Limiter(bounds)
        self.processes = processes
        self.now = 0.0

    def look(self, own: float, running: float | None = None, waiting: float | None = None, times: int = 1, **more: int) -> float:
        for _ in range(times):
            self.now += LOOK_S
            self.limiter.update(Heard(own, None, running, waiting, **more), self.processes, self.now)
        return self.limiter.requests

    def firsts(self, seconds_per_token: float, tokens: int = 1000, count: int = 12) -> None:
        for _ in range(count):
            self.limiter.began(tokens, 0.0, (256 + tokens) * seconds_per_token)


looks = st.tuples(
    st.integers(0, 5000), st.none() | st.integers(0, 5000), st.none() | st.integers(0, 5000), st.none() | st.integers(0, 10**6),
    st.none() | st.integers(0, 10**9), st.floats(0, 1e3), st.floats(0, 10), st.integers(0, 10**6),
)  # fmt: skip


@given(st.lists(looks, max_size=60), st.integers(1, 50), st.integers(1, 500), st.integers(1, 9))
def test_whatever_is_heard_a_limit_stays_within_its_bounds(told: list[tuple], least: int, more: int, processes: int) -> None:
    engine = Engine(LimitBounds(least, least + more), processes)
    limiter = engine.limiter
    for own, running, waiting, preemptions, generated, ttft_s, gap_s, tokens in told:
        for _ in range(11):
            limiter.began(tokens, tokens / 2, ttft_s)
            limiter.ended(gap_s)
        whole = engine.look(own, running, waiting, 4, preemptions=preemptions, generated=generated)
        assert least <= whole <= least + more
        assert limiter.tokens > 0
        for requests, prompt_tokens in [limiter.room(), *(limiter.share(processes, rank) for rank in range(processes))]:
            assert 1 <= requests <= least + more + 5000
            assert prompt_tokens > 0


@given(st.lists(st.integers(3, 200), min_size=3, max_size=3), st.integers(0, 100), st.integers(1, 256))
def test_the_more_waits_the_less_is_given(waiting: list[int], more: int, running: int) -> None:
    found = []
    for extra in (0, more):
        engine = Engine(LimitBounds(start=256))
        for one in waiting:
            engine.look(256, running, one + extra)
        found.append(engine.look(256, running, waiting[-1] + extra))
    assert found[1] <= found[0]


def test_it_grows_fast_while_it_is_used_and_nothing_waits() -> None:
    engine = Engine()
    assert engine.limiter.requests == 64
    for _ in range(20):
        whole = engine.look(engine.limiter.requests, engine.limiter.requests, 0)
    assert whole > 200, "in two seconds"


@given(st.lists(st.integers(0, 50), min_size=10, max_size=50))
def test_it_does_not_grow_while_it_is_not_used(running: list[int]) -> None:
    engine = Engine()
    for one in running:
        assert engine.look(one, one, 0) == 64
        engine.firsts(0.001)
        assert engine.look(one) == 64


def test_a_standing_queue_cuts_it_to_the_batch_and_a_burst_does_not() -> None:
    engine = Engine(LimitBounds(start=130))
    for _ in range(5):
        engine.look(100, 40, 60)
        engine.look(60, 60, 0, 3)
    assert engine.limiter.requests == 130
    engine.look(100, 40, 60, 4)
    assert engine.limiter.requests == 65, "at most halved at a time"
    assert engine.look(100, 40, 60, 4) == 42


def test_it_comes_back_after_a_slow_phase() -> None:
    engine = Engine(LimitBounds(start=100))
    for _ in range(10):
        engine.look(100, 30, 70, 4)
    assert engine.limiter.requests == 32
    for _ in range(30):
        engine.look(engine.limiter.requests, min(100, engine.limiter.requests), max(0, engine.limiter.requests - 100))
    assert engine.limiter.requests > 95


def test_sequences_that_were_thrown_out_cut_it_and_nothing_grows_for_a_while() -> None:
    engine = Engine(LimitBounds(start=50))
    engine.look(50, 50, 0, 2, preemptions=7)
    assert engine.look(50, 40, 0, preemptions=8) == 38
    assert engine.look(38, 38, 0, 25, preemptions=8) == 38
    assert engine.look(38, 38, 0, 20, preemptions=8) > 38


def test_without_the_engines_word_times_per_token_say_it() -> None:
    engine = Engine(LimitBounds(start=100))
    for _ in range(3):
        engine.firsts(0.0001)
        engine.look(1, times=4)
    assert engine.limiter.requests == 100
    for _ in range(4):
        engine.firsts(0.001)
        engine.look(100, times=20)
    assert engine.limiter.requests < 60
    low = engine.limiter.requests
    for _ in range(40):
        engine.firsts(0.0001)
        engine.look(engine.limiter.requests, times=5)
    assert engine.limiter.requests > 1.5 * low


@pytest.mark.parametrize("told", [True, False])
def test_long_prompts_shrink_nothing(told: bool) -> None:
    engine = Engine()
    said = (50.0, 0.0) if told else ()
    for tokens in (500, 500, 500, 30_000, 30_000):
        engine.firsts(0.0001, tokens)
        engine.look(50, *said, times=5)
    assert engine.limiter.requests == 64
    assert engine.limiter.tokens >= 3000


def test_prompt_tokens_follow_the_engines_speed_within_a_floor() -> None:
    fast, slow, slowest = Engine(), Engine(), Engine()
    for engine, per_token in ((fast, 0.00002), (slow, 0.0001), (slowest, 0.1)):
        for _ in range(20):
            engine.firsts(per_token, 100)
            engine.look(1, 1, 0, 4)
    assert fast.limiter.tokens == pytest.approx(15_000)
    assert slow.limiter.tokens == pytest.approx(3_000)
    assert slowest.limiter.tokens == 2048


def test_a_few_long_prompts_find_room_together() -> None:
    engine = Engine()
    for _ in range(20):
        engine.firsts(0.00005, 5000)
        engine.look(1, 1, 0, 4)
    assert engine.limiter.tokens == pytest.approx(12_500)


def test_tokens_that_come_too_slowly_brake_prompts_first_and_then_requests() -> None:
    engine = Engine(LimitBounds(gap_s=0.05, start=100))
    made = 0
    engine.firsts(0.0001)
    for _ in range(40):
        made += 100  # of 100 sequences in 0.1 s: one each
        engine.look(100, 100, 1, generated=made)
    assert (engine.limiter.requests, engine.limiter.tokens) == (pytest.approx(60, abs=45), 256)
    for _ in range(140):
        made += 500
        engine.look(100, 100, 1, generated=made)
    assert engine.limiter.tokens > 2000


def test_larger_batches_may_be_slower_where_nothing_is_said_of_it() -> None:
    engine = Engine()
    made = 0
    for gap_s in (0.02, 0.03, 0.05, 0.075):
        for _ in range(20):
            made += int(64 * LOOK_S / gap_s)
            engine.look(64, 64, 1, generated=made)
    assert (engine.limiter.requests, engine.limiter.tokens) == (64, inf)


def test_a_restart_forgets_everything() -> None:
    engine = Engine(LimitBounds(gap_s=0.01))
    engine.firsts(0.001)
    engine.look(50, 4, 40, 20, generated=10, preemptions=3)
    assert engine.limiter.requests < 10
    engine.limiter.restarted()
    assert (engine.limiter.requests, engine.limiter.tokens, engine.limiter.pace.gap_s) == (64, inf, 0)
    assert engine.look(64, 64, 0, generated=0, preemptions=0) >= 64


@given(st.integers(1, 400), st.integers(1, 64))
def test_shares_add_up_to_the_limit_and_nobody_has_none(whole: int, processes: int) -> None:
    limiter = Limiter(LimitBounds(start=whole, most=400))
    shares = [limiter.share(processes, rank)[0] for rank in range(processes)]
    assert sum(shares) == max(whole, processes)
    assert max(shares) - min(shares) <= 1


def test_what_others_leave_is_lent_and_given_back() -> None:
    engine = Engine(LimitBounds(start=90), processes=3)
    limiter = engine.limiter
    engine.firsts(0.0001)
    assert limiter.share(3, 0)[0] == 30
    for _ in range(20):
        engine.look(limiter.share(3, 0)[0], limiter.share(3, 0)[0], 0)
    assert limiter.share(3, 0)[0] >= 85
    assert limiter.share(3, 0)[1] > 0.9 * limiter.tokens
    for _ in range(60):  # the others are back, and the engine has 90 places
        own = limiter.share(3, 0)[0]
        engine.look(own, min(90, own + 60), max(0, own + 60 - 90))
    assert limiter.share(3, 0)[0] == pytest.approx(31, abs=4)


def test_while_nobody_knows_how_many_there_are_the_engines_word_counts() -> None:
    engine = Engine(LimitBounds(start=40))
    engine.look(10, 25, 0)
    assert engine.limiter.room()[0] == 25, "10 are ours, 15 are left"
    engine.look(20, 50, 30)
    assert engine.limiter.room()[0] == 10, "half of what there is, as all of it is twice the limit"


def test_a_batch_that_was_found_is_probed_by_one_request_and_ever_less_often() -> None:
    """An engine of 100 sequences, filled by a tenant that leaves some of them free: the limit does not grow into the engine's own queue."""
    engine, standing = Engine(LimitBounds(start=130)), []
    for _ in range(3000):
        wanted = int(0.96 * engine.limiter.slots)
        standing.append(max(0, wanted - 100))
        engine.look(wanted, min(100, wanted), standing[-1])
    assert engine.limiter.slots <= 106
    assert max(standing[10:]) <= 2, "a probe goes one request too far"
    assert sum(one > 0 for one in standing[1500:]) < 40


def test_an_engine_whose_batch_has_grown_is_found_out_at_once() -> None:
    engine = Engine(LimitBounds(start=40))
    for _ in range(5):
        engine.look(40, 20, 20, 4)
    assert engine.limiter.requests == 22
    assert engine.limiter.slots == 20
    for _ in range(40):
        limit = int(engine.limiter.requests)
        engine.look(limit, min(300, limit), max(0, limit - 300))
    assert engine.limiter.requests > 200


def test_all_of_the_limit_is_slots_until_a_batch_is_known() -> None:
    engine = Engine(LimitBounds(start=64))
    assert engine.limiter.slots == 64
    engine.look(64, 64, 0)
    assert engine.limiter.slots == engine.limiter.requests
