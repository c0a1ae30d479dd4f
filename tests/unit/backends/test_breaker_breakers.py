import random

from backends.breaker import CALM_S, IN_A_ROW, AttemptVerdict, Breakers

MIDDLE = random.Random(1)


def failing(breakers: Breakers, backend: str, served: str = "", now: float = 0.0) -> None:
    for _ in range(IN_A_ROW):
        breakers.ended(backend, served, AttemptVerdict.FAILURE, "x", now, MIDDLE, "reset")


def test_an_adapter_fails_for_itself_and_the_model_for_all() -> None:
    breakers = Breakers()
    failing(breakers, "a", "lora")
    assert breakers.shut("", 1.0) == {}
    assert breakers.shut("other", 1.0) == {}
    assert list(breakers.shut("lora", 1.0)) == ["a"]
    failing(breakers, "b")
    assert list(breakers.shut("", 1.0)) == list(breakers.shut("other", 1.0)) == ["b"]
    assert breakers.opens == {"a": 1, "b": 1}


def test_what_closed_or_cooled_down_is_heeded_no_more() -> None:
    breakers = Breakers()
    failing(breakers, "a")
    breakers.cool("b", "", 2.0, 0.0)
    assert set(breakers.shut("", 1.0)) == {"a", "b"}
    assert breakers.of("a").enter("t", 6.0)
    assert breakers.begun("a", "", "t", 6.0)
    assert breakers.shut("", 6.0) == {}


def test_a_backend_that_was_away_begins_anew_and_one_that_left_is_forgotten() -> None:
    breakers = Breakers()
    failing(breakers, "a")
    breakers.reset("a")
    assert breakers.shut("", 1.0) == {}
    assert breakers.opens == {"a": 1}
    failing(breakers, "a", now=2.0)
    breakers.forget("a")
    assert (breakers.shut("", 3.0), breakers.opens, dict(breakers.of_backend("a"))) == ({}, {}, {})


def test_breakers_of_adapters_nobody_asks_for_go() -> None:
    breakers = Breakers()
    for n in range(100):
        breakers.ended("a", f"lora-{n}", AttemptVerdict.SUCCESS, "x", float(n), MIDDLE)
    breakers.ended("a", "", AttemptVerdict.SUCCESS, "x", 0.0, MIDDLE)
    failing(breakers, "a", "bad")
    breakers.tidy(99.0 + CALM_S)
    assert sorted(name for name, _ in breakers.of_backend("a")) == ["", "bad", "lora-99"]
