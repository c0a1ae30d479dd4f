"""The laws of a bounded detector: its time, its places, its memory and its breaker, with a clock that only the test moves."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from guardrails.detectors.asking import TextRefused
from guardrails.detectors.bounded import MAX_OF_TENANT, BoundedDetector, Terms
from guardrails.detectors.breaker import FAILURES, JITTER, REST_FIRST_S, DetectorBreaker
from guardrails.detectors.results import Results
from guardrails.detectors.windows import MAX_WINDOWS
from guardrails.ports import Detected, DetectorAway

TIMEOUT_S = 0.15


class Time:
    """A clock with calls that are due later."""

    def __init__(self) -> None:
        self.now = 100.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, after_s: float, call: Callable[[], None]) -> "Due":
        entry = (self.now + after_s, call)
        self._calls.append(entry)
        return Due(self._calls, entry)

    async def pass_to(self, after_s: float) -> None:
        """Let the clock show so many seconds more, and everything happen that is due or ready then."""
        await settled()
        self.now = round(self.now + after_s, 9)
        for entry in [entry for entry in self._calls if entry[0] <= self.now + 1e-9]:
            self._calls.remove(entry)
            entry[1]()
        await settled()

    @property
    def due(self) -> int:
        return len(self._calls)


class Due:
    def __init__(self, calls: list[tuple[float, Callable[[], None]]], entry: tuple[float, Callable[[], None]]) -> None:
        self._calls, self._entry = calls, entry

    def cancel(self) -> None:
        if self._entry in self._calls:
            self._calls.remove(self._entry)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Held:
    """A detector that answers when the test lets it, and finds the word `bad` and the tenant's name as a kind."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.under_way: dict[str, int] = {}
        self.most = 0
        self.most_of: dict[str, int] = {}
        self.raises: Exception | None = None
        self.gate = asyncio.Event()
        if at_once:
            self.gate.set()

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        self.asked.append((text, direction, tenant))
        self.under_way[tenant] = self.under_way.get(tenant, 0) + 1
        self.most = max(self.most, sum(self.under_way.values()))
        self.most_of[tenant] = max(self.most_of.get(tenant, 0), self.under_way[tenant])
        try:
            await self.gate.wait()
        finally:
            self.under_way[tenant] -= 1
        if self.raises is not None:
            raise self.raises
        places = [at for at in range(len(text)) if text.startswith("bad", at)]
        return [Detected(f"bad_of_{tenant}", 0.9, at, at + 3) for at in places]


class Bench:
    """One bounded detector over a held one."""

    def __init__(self, *, at_once: bool = True, results: Results | None = None, version: str = "1", **fields: float) -> None:
        self.time = Time()
        self.detector = Held(at_once=at_once)
        given = {"timeout_s": TIMEOUT_S, "at_once": 8, "at_once_of_tenant": 2, "max_chars": 1000, "overlap_chars": 100, "remember_s": 60.0}
        terms = Terms(version=version, **{**given, **fields})  # type: ignore[arg-type]
        self.results = Results(1_000_000) if results is None else results
        breaker = DetectorBreaker(random.Random(7))
        self.bounded = BoundedDetector(self.detector, terms, self.results, breaker, lambda: self.time.now, self.time.call_later)

    def ask(self, text: str = "some bad text", direction: str = "input", tenant: str = "acme") -> "asyncio.Task[Sequence[Detected]]":
        return asyncio.ensure_future(self.bounded.detect(text, direction, tenant))

    async def word(self, text: str = "some bad text", tenant: str = "acme") -> str:
        """Why there is no answer; empty where there is one."""
        try:
            await self.bounded.detect(text, "input", tenant)
        except DetectorAway as away:
            return str(away)
        return ""


# --- memory ---------------------------------------------------------------------------------------------------------


async def test_a_result_is_remembered_for_its_tenant_direction_and_version_alone() -> None:
    results = Results(1_000_000)
    bench, newer = Bench(results=results), Bench(results=results, version="2")
    first = await bench.ask()
    assert await bench.ask() == first
    assert len(bench.detector.asked) == 1
    others = [await bench.ask(tenant="bolt"), await bench.ask(direction="output"), await newer.ask(), await bench.ask("some bad text ")]
    assert len(bench.detector.asked) + len(newer.detector.asked) == 5, "each of them was asked anew"
    assert [found[0].kind for found in others] == ["bad_of_bolt", "bad_of_acme", "bad_of_acme", "bad_of_acme"]
    assert (bench.bounded.figures().asked, bench.bounded.figures().remembered) == (4, 1)


async def test_of_many_tenants_with_equal_texts_none_is_told_what_was_said_to_another() -> None:
    bench = Bench(at_once_of_tenant=1)
    rng = random.Random(11)
    for _ in range(2000):
        tenant = f"t{rng.randrange(20)}"
        found = await bench.ask("bad" * rng.randrange(1, 4), tenant=tenant)
        assert {one.kind for one in found} == {f"bad_of_{tenant}"}
    assert bench.bounded.figures().remembered == 2000 - 60


async def test_a_result_is_forgotten_with_its_time() -> None:
    bench = Bench(remember_s=10.0)
    await bench.ask()
    await bench.time.pass_to(9.99)
    await bench.ask()
    assert len(bench.detector.asked) == 1
    await bench.time.pass_to(0.01)
    await bench.ask()
    assert len(bench.detector.asked) == 2


async def test_nothing_is_remembered_where_the_settings_say_so() -> None:
    bench = Bench(remember_s=0.0)
    for _ in range(3):
        await bench.ask()
    assert (len(bench.detector.asked), len(bench.results)) == (3, 0)


async def test_a_failure_is_not_remembered() -> None:
    bench = Bench()
    bench.detector.raises = DetectorAway("error")
    assert await bench.word() == "error"
    bench.detector.raises = None
    assert await bench.word() == ""
    assert len(bench.detector.asked) == 2


# --- equal questions ------------------------------------------------------------------------------------------------


async def test_equal_questions_of_one_tenant_are_one_question() -> None:
    bench = Bench(at_once=False, remember_s=0.0)
    tasks = [bench.ask() for _ in range(5)] + [bench.ask(tenant="bolt")]
    await settled()
    assert len(bench.detector.asked) == 2
    bench.detector.gate.set()
    answers = await asyncio.gather(*tasks)
    assert [found[0].kind for found in answers] == ["bad_of_acme"] * 5 + ["bad_of_bolt"]
    assert bench.bounded.figures().joined == 4


async def test_a_question_goes_on_while_anybody_waits_and_ends_with_the_last_one() -> None:
    bench = Bench(at_once=False)
    first, second = bench.ask(), bench.ask()
    await settled()
    first.cancel()
    await settled()
    assert bench.detector.under_way == {"acme": 1}
    second.cancel()
    await settled()
    assert bench.detector.under_way == {"acme": 0}, "nobody waits, so the engine is let go"
    assert (bench.bounded.figures().under_way, bench.time.due) == (0, 0)
    assert bench.bounded.figures().breaker_opened == 0


# --- time -----------------------------------------------------------------------------------------------------------


async def test_a_question_ends_exactly_with_its_time() -> None:
    bench = Bench(at_once=False)
    task = bench.ask()
    await bench.time.pass_to(TIMEOUT_S - 0.000_001)
    assert not task.done()
    await bench.time.pass_to(0.000_001)
    with pytest.raises(DetectorAway, match=r"^timeout$"):
        await task
    assert bench.detector.under_way == {"acme": 0}
    assert bench.bounded.figures().seconds == pytest.approx(TIMEOUT_S)


async def test_waiting_for_a_place_counts_against_the_time_and_not_against_the_detector() -> None:
    bench = Bench(at_once=False, at_once_of_tenant=1)
    first = bench.ask("first")
    await bench.time.pass_to(0.1)
    waiting = [bench.ask(f"waiting {number}") for number in range(FAILURES)]
    await bench.time.pass_to(0.05)  # the first one's time is over; the second one gets its place
    with pytest.raises(DetectorAway, match=r"^timeout$"):
        await first
    await bench.time.pass_to(0.1)
    words = [str(task.exception()) for task in waiting]
    assert words == ["timeout"] + ["busy"] * (FAILURES - 1)
    figures = bench.bounded.figures()
    assert (figures.timeouts, figures.busy, figures.breaker_opened) == (2, FAILURES - 1, 0)


async def test_an_answer_in_time_leaves_no_timer() -> None:
    bench = Bench()
    await bench.ask()
    assert bench.time.due == 0


# --- places ---------------------------------------------------------------------------------------------------------


async def test_so_many_are_asked_at_once_in_all_and_of_one_tenant() -> None:
    bench = Bench(at_once=False)
    tasks = [
        bench.ask(f"text {number}", tenant=tenant) for tenant in ("acme", "bolt", "core", "dune", "echo", "fern") for number in range(6)
    ]
    await settled()
    assert bench.detector.most == 8
    bench.detector.gate.set()
    await asyncio.gather(*tasks)
    assert bench.detector.most == 8
    assert max(bench.detector.most_of.values()) == 2
    assert len(bench.detector.asked) == 36


async def test_a_tenant_with_many_questions_does_not_keep_another_one_waiting() -> None:
    bench = Bench(at_once=False)
    for number in range(40):
        bench.ask(f"text {number}", tenant="greedy")
    await settled()
    other = bench.ask(tenant="other")
    await settled()
    assert ("some bad text", "input", "other") in bench.detector.asked
    bench.detector.gate.set()
    assert await other


async def test_more_questions_than_may_wait_are_busy_at_once() -> None:
    bench = Bench(at_once=False)
    for number in range(MAX_OF_TENANT):
        bench.ask(f"text {number}")
    await settled()
    assert await bench.word("one more") == "busy"
    bench.detector.gate.set()
    await settled()
    assert await bench.word("one more") == ""


# --- windows --------------------------------------------------------------------------------------------------------


async def test_a_long_text_is_asked_in_windows_and_found_as_a_whole() -> None:
    bench = Bench(max_chars=50, overlap_chars=10)
    text = "x" * 44 + "bad" + "x" * 100 + "bad"
    found = await bench.ask(text)
    assert [(one.begin, one.end) for one in found] == [(44, 47), (147, 150)]
    assert all(len(asked) <= 50 for asked, _, _ in bench.detector.asked)
    assert await bench.ask(text) == found
    assert bench.bounded.figures().asked == 1


async def test_of_windows_either_all_are_answered_or_none_counts() -> None:
    class SecondFails(Held):
        async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
            if "second" in text:
                raise DetectorAway("unreadable")
            return await super().detect(text, direction, tenant)

    bench = Bench(max_chars=50, overlap_chars=0)
    bench.bounded._detector = SecondFails(at_once=True)
    assert await bench.word("x" * 50 + "second") == "unreadable"
    assert len(bench.results) == 0


async def test_a_text_with_more_windows_than_could_be_done_is_not_begun() -> None:
    bench = Bench(max_chars=10, overlap_chars=0)
    assert await bench.word("x" * (10 * MAX_WINDOWS)) == ""
    assert await bench.word("x" * (10 * MAX_WINDOWS + 1)) == "error"
    assert len(bench.detector.asked) == MAX_WINDOWS


# --- breaker --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["error", "unreadable"])
async def test_failures_in_a_row_open_the_breaker_and_one_question_tries_again(why: str) -> None:
    bench = Bench()
    bench.detector.raises = DetectorAway(why)
    for number in range(FAILURES):
        assert await bench.word(f"text {number}") == why
    assert await bench.word("text") == "open"
    assert len(bench.detector.asked) == FAILURES
    await bench.time.pass_to(REST_FIRST_S * (1 + JITTER))
    bench.detector.gate.clear()
    probe = bench.ask("probe")
    await settled()
    assert await bench.word("another one") == "open", "one tries the detector, the others go on without it"
    bench.detector.raises = None
    bench.detector.gate.set()
    assert not await probe
    assert await bench.word("text") == ""


async def test_a_probe_that_fails_opens_for_twice_as_long() -> None:
    bench = Bench()
    bench.detector.raises = RuntimeError("a defect of an adapter")
    for number in range(FAILURES):
        assert await bench.word(f"text {number}") == "error"
    await bench.time.pass_to(REST_FIRST_S * (1 + JITTER))
    assert await bench.word("probe") == "error"
    await bench.time.pass_to(2 * REST_FIRST_S * (1 - JITTER) - 0.01)
    assert await bench.word("too early") == "open"
    await bench.time.pass_to(4 * JITTER * REST_FIRST_S + 0.02)
    assert await bench.word("probe again") == "error"
    assert bench.bounded.figures().breaker_opened == 3


async def test_a_success_in_between_keeps_it_closed() -> None:
    bench = Bench(remember_s=0.0)
    for number in range(4 * FAILURES):
        bench.detector.raises = DetectorAway("error") if number % FAILURES else None
        await bench.word(f"text {number}")
    assert bench.bounded.figures().breaker_opened == 0


async def test_texts_that_the_service_refuses_and_questions_given_up_say_nothing_of_it() -> None:
    bench = Bench()
    bench.detector.raises = TextRefused("error")
    for number in range(2 * FAILURES):
        assert await bench.word(f"text {number}") == "error"
    bench.detector.gate.clear()
    for number in range(2 * FAILURES):
        task = bench.ask(f"given up {number}")
        await settled()
        task.cancel()
        await settled()
    assert bench.bounded.figures().breaker_opened == 0
    bench.detector.raises = None
    bench.detector.gate.set()
    assert await bench.word() == ""


async def test_a_probe_that_nobody_waits_for_lets_the_next_one_try() -> None:
    bench = Bench()
    bench.detector.raises = DetectorAway("error")
    for number in range(FAILURES):
        await bench.word(f"text {number}")
    await bench.time.pass_to(REST_FIRST_S * (1 + JITTER))
    bench.detector.gate.clear()
    probe = bench.ask("probe")
    await settled()
    probe.cancel()
    await settled()
    bench.detector.raises = None
    bench.detector.gate.set()
    assert await bench.word("next") == ""


async def test_the_end_of_the_worker_ends_every_question() -> None:
    bench = Bench(at_once=False)
    tasks = [bench.ask(f"text {number}") for number in range(5)]
    await settled()
    await bench.bounded.close()
    assert [str(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == ["error"] * 5
    assert (bench.time.due, bench.detector.under_way) == (0, {"acme": 0})
