import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.poison import DEATHS, HOLD_S, KEEP_S, MAX_SUSPECTS, SEEN_GONE_S, WITHIN_S, PoisonSuspects, Suspicion, mark_of

GONE = float("inf")
NEVER = float("-inf")


def gone(*backends: str):  # type: ignore[no-untyped-def]  # a closure
    return lambda backend: GONE if backend in backends else NEVER


def killer(suspects: PoisonSuspects, first: float = 0.0, second: float = 10.0) -> Suspicion:
    """A request ends `a`, is sent again and ends `b`; whether it may be tried once more."""
    assert not suspects.struck(b"x", "acme", "a", first - 1, first)
    return suspects.struck(b"x", "acme", "b", first + 1, second)


def test_two_engines_that_died_one_after_the_other_are_enough() -> None:
    suspects = PoisonSuspects()
    assert killer(suspects)
    assert suspects.refused_s(b"x", 10.0) == 0, "nobody knows yet that they died"
    assert list(suspects.look(gone("a", "b"), 10.5)) == [("acme", ("a", "b"))]
    assert suspects.refused_s(b"x", 11.0) == HOLD_S - 1
    assert suspects.refused_s(b"y", 11.0) == 0
    assert list(suspects.look(gone("a", "b"), 12.0)) == [], "told once"
    list(suspects.look(gone(), 10.0 + HOLD_S))
    assert suspects.guilty == {}


def test_connections_that_break_on_engines_that_live_are_no_deaths() -> None:
    suspects = PoisonSuspects()
    killer(suspects)
    for n in range(40):
        assert list(suspects.look(gone("a"), 10.0 + n)) == []
    assert suspects.guilty == {}
    assert list(suspects.look(gone("a", "b"), 10.0 + SEEN_GONE_S + 20)) == [], "it went for another reason"


def test_deaths_far_apart_are_chance() -> None:
    suspects = PoisonSuspects()
    assert not killer(suspects, 0.0, WITHIN_S + 1)
    list(suspects.look(gone("a", "b"), WITHIN_S + 2))
    assert suspects.guilty == {}


def test_copies_that_were_under_way_when_a_rack_lost_its_power_are_not_to_blame() -> None:
    suspects = PoisonSuspects()
    for backend in "aabbccdd":
        assert not suspects.struck(b"ping", "acme", backend, 0.0, 5.0 + ord(backend) / 1000)
    assert list(suspects.look(gone(*"abcd"), 6.0)) == []
    assert suspects.guilty == {}


def test_a_pool_of_one_engine_that_is_ended_again_and_again() -> None:
    suspects = PoisonSuspects()
    suspects.struck(b"x", "acme", "a", 0.0, 1.0)
    assert list(suspects.look(gone("a"), 2.0)) == []
    assert suspects.struck(b"x", "acme", "a", 20.0, 21.0) is Suspicion.MAYBE, "no poll has seen the second death"
    assert list(suspects.look(lambda _: 21.5, 22.0)) == [("acme", ("a", "a"))]


def test_one_death_is_not_counted_twice() -> None:
    suspects = PoisonSuspects()
    suspects.struck(b"x", "acme", "a", 0.0, 1.0)
    assert not suspects.struck(b"x", "acme", "a", 2.0, 3.0), "it lived through the first"
    assert list(suspects.look(lambda _: 3.5, 4.0)) == []


def test_an_answer_clears_it() -> None:
    suspects = PoisonSuspects()
    killer(suspects)
    suspects.cleared(b"x")
    assert list(suspects.look(gone("a", "b"), 10.5)) == []
    assert not suspects.struck(b"x", "acme", "c", 11.0, 12.0)


def test_after_the_time_is_over_one_more_death_is_enough_and_later_it_is_forgotten() -> None:
    suspects = PoisonSuspects()
    killer(suspects)
    list(suspects.look(gone("a", "b"), 11.0))
    assert suspects.struck(b"x", "acme", "c", 200.0, 201.0) is Suspicion.CONFIRMED, "not tried again"
    assert list(suspects.look(gone("a", "b", "c"), 202.0)) == [("acme", ("b", "c"))]
    assert suspects.refused_s(b"x", 202.0) == HOLD_S - 1
    list(suspects.look(gone(), 202.0 + KEEP_S))
    assert (len(suspects), suspects.guilty) == (0, {})


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.floats(0, 30), st.floats(0, 40), st.booleans()), max_size=60))
def test_nobody_is_refused_without_two_deaths(steps: list[tuple[int, str, float, float, bool]]) -> None:
    suspects, now, strikes, away = PoisonSuspects(), 0.0, dict.fromkeys(range(4), 0), dict.fromkeys("ab", NEVER)
    for who, backend, took, pause, died in steps:
        now += pause
        suspects.struck(bytes([who]), "acme", backend, now - took, now)
        strikes[who] += 1
        if died:
            away[backend] = now
        list(suspects.look(away.__getitem__, now))
        assert {mark[0] for mark in suspects.guilty} <= {one for one, count in strikes.items() if count >= DEATHS}
        assert all(0 < until - now <= HOLD_S + 1e-9 for until in suspects.guilty.values())


def test_the_number_of_suspects_is_bounded() -> None:
    suspects = PoisonSuspects()
    for n in range(MAX_SUSPECTS + 10):
        suspects.struck(n.to_bytes(4), "acme", "a", 0.0, 1.0)
    assert len(suspects) == MAX_SUSPECTS


@pytest.mark.parametrize("other", [("bolt", "m", b"{}"), ("acme", "n", b"{}"), ("acme", "m", b"{ }"), ("acme\0m", "", b"{}")])
def test_a_mark_is_of_one_tenant_model_and_body(other: tuple[str, str, bytes]) -> None:
    assert mark_of(b"s" * 32, "acme", "m", b"{}") == mark_of(b"s" * 32, "acme", "m", b"{}")
    assert mark_of(b"s" * 32, *other) != mark_of(b"s" * 32, "acme", "m", b"{}")
    assert mark_of(b"t" * 32, "acme", "m", b"{}") != mark_of(b"s" * 32, "acme", "m", b"{}")
