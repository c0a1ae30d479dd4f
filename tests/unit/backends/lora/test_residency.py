"""Residency as a decision: the bound of slots, least recently used, nothing in use evicted, wrong beliefs mended."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import booleans, sampled_from

from backends.lora.residency import NONE, SETTLE_S, SPARED_S, Adapter, AdaptersInUse, LoadedAdapters, LoraUnavailable, NoSlot, Obstacle

NAMES = [Adapter(name, digit * 64, "/a").served for name, digit in zip("abcde", "01234", strict=True)]
A, B, C, D, E = NAMES


def why(obstacle: Obstacle | None) -> str:
    return obstacle.why if obstacle is not None else ""


def shelf_with(*names: str, slots: int = 2) -> LoadedAdapters:
    """Loaded in this order, a second apart."""
    adapters = LoadedAdapters(slots)
    for at, name in enumerate(names):
        assert adapters.begin(name, float(at), NONE) == ()
        adapters.loaded(name, float(at))
    return adapters


@pytest.mark.req("R42")
def test_a_name_is_pinned_to_its_content() -> None:
    old, new = Adapter("bot", "1" * 64, "/adapters/bot"), Adapter("bot", "2" * 64, "/adapters/bot")
    assert (old.served, new.served) == ("bot@111111111111", "bot@222222222222")


def test_the_least_recently_used_goes_first() -> None:
    adapters = shelf_with(A, B)
    adapters.charge(A, 5.0)
    adapters.release(A, 5.0)
    assert adapters.begin(C, 6.0, NONE) == (B,)
    adapters.unloaded(B)
    adapters.loaded(C, 7.0)
    assert adapters.resident() == (A, C)
    assert adapters.begin(D, 8.0, NONE) == (A,)


def test_nothing_in_use_is_evicted_be_it_ours_or_anothers() -> None:
    adapters = shelf_with(A, B)
    adapters.charge(A, 5.0)
    assert adapters.begin(C, 6.0, NONE) == (B,)
    adapters.stays(B, sure=True)
    adapters.failed(C, "no", 0.0, sure=True)
    obstacle = adapters.obstacle(C, 6.0, AdaptersInUse({B}, 6.0))  # the engine itself says that somebody uses B
    assert obstacle == Obstacle(f"all 2 adapter slots are in use: {A}, {B}", passes=True)
    with pytest.raises(LoraUnavailable, match="all 2 adapter slots"):
        adapters.begin(C, 6.0, AdaptersInUse({B}, 6.0))
    assert adapters.resident() == (A, B)


def test_the_engines_word_is_not_about_our_own_request_that_has_just_ended() -> None:
    adapters = shelf_with(A, slots=1)
    adapters.charge(A, 5.0)
    adapters.release(A, 6.0)
    assert adapters.obstacle(B, 6.1, AdaptersInUse({A}, 5.95)) is None
    assert adapters.obstacle(B, 6.1, AdaptersInUse({A}, 6.0 + SETTLE_S)) is None
    assert adapters.obstacle(B, 6.4, AdaptersInUse({A}, 6.1 + SETTLE_S)) is not None


def test_what_somebody_waits_for_is_in_use_before_it_is_there() -> None:
    adapters = LoadedAdapters(1)
    adapters.charge(A, 1.0)
    adapters.begin(A, 1.0, NONE)
    adapters.loaded(A, 2.0)
    assert adapters.obstacle(B, 3.0, NONE)
    adapters.release(A, 5.0)
    assert adapters.begin(B, 3.0, NONE) == (A,)


def test_adapters_that_are_not_of_our_naming_hold_slots_and_are_never_evicted() -> None:
    adapters = LoadedAdapters(2)
    adapters.reported(["operators-own", A], adapters.changes)
    assert adapters.begin(B, 1.0, NONE) == (A,)
    adapters.unloaded(A)
    adapters.loaded(B, 1.0)
    adapters.charge(B, 1.0)
    assert "operators-own" in why(adapters.obstacle(C, 2.0, NONE))


def test_only_slots_that_a_request_frees_are_worth_a_wait() -> None:
    """One slot is an operator's own adapter, which is never evicted: it makes no room, whatever ends."""
    adapters = LoadedAdapters(1)
    adapters.reported(["operators-own"], adapters.changes)
    obstacle = adapters.obstacle(A, 1.0, NONE)
    assert obstacle is not None
    assert not obstacle.passes
    with pytest.raises(LoraUnavailable) as refused:
        adapters.begin(A, 1.0, NONE)
    assert not isinstance(refused.value, NoSlot)
    in_use = shelf_with(A, slots=1)
    in_use.charge(A, 2.0)
    assert in_use.obstacle(B, 3.0, NONE) == Obstacle(f"all 1 adapter slots are in use: {A}", passes=True)
    with pytest.raises(NoSlot):
        in_use.begin(B, 3.0, NONE)


def test_a_free_slot_is_promised_once() -> None:
    """Two requests for two adapters are decided one after the other, before the first one's load has begun: one of them has the slot."""
    adapters = shelf_with(A)
    assert adapters.obstacle(B, 2.0, NONE) is None
    adapters.charge(B, 2.0)
    assert adapters.obstacle(B, 2.0, NONE) is None, "a second request for the same adapter needs no slot of its own"
    assert adapters.obstacle(C, 2.0, NONE) is None, "A is idle, so there is a slot for each of them"
    adapters.charge(A, 3.0)
    assert adapters.obstacle(C, 3.0, NONE) == Obstacle(f"all 2 adapter slots are in use: {A}, {B}", passes=True)
    adapters.release(B, 4.0)
    assert adapters.obstacle(C, 4.0, NONE) is None, "the promise ends with its request"


def test_what_another_process_has_just_loaded_is_spared_until_its_request_can_be_seen() -> None:
    adapters = LoadedAdapters(1)
    adapters.reported([A], adapters.changes, 10.0)
    assert adapters.obstacle(B, 10.0, NONE) is None, "nobody knows since when it is there"
    adapters.reported([], adapters.changes, 11.0)
    adapters.reported([A], adapters.changes, 12.0)
    assert adapters.obstacle(B, 12.0, NONE) == Obstacle(f"all 1 adapter slots are in use: {A}", passes=True)
    assert adapters.obstacle(B, 12.0 + SPARED_S, NONE) is None


def test_every_end_that_may_free_a_slot_is_counted() -> None:
    adapters = shelf_with(A, slots=1)
    adapters.charge(A, 2.0)
    adapters.charge(A, 2.0)
    before = adapters.moves
    adapters.release(A, 3.0)
    assert adapters.moves == before, "another request still uses it"
    adapters.release(A, 3.0)
    assert adapters.moves > before


def test_an_older_version_drains_out_of_residency() -> None:
    adapters = LoadedAdapters(1)
    adapters.reported([A], adapters.changes)  # loaded by a gateway with yesterday's configuration
    assert adapters.begin(B, 1.0, NONE) == (A,)


def test_too_many_after_a_race_between_processes_are_evicted_by_the_next_load() -> None:
    adapters = LoadedAdapters(2)
    adapters.reported([A, B, C], adapters.changes)
    assert len(adapters.begin(D, 1.0, NONE)) == 2


def test_engines_that_cannot_load_serve_what_they_list() -> None:
    adapters = LoadedAdapters(2, loads=False)
    adapters.reported([A], adapters.changes)
    assert adapters.obstacle(A, 0.0, NONE) is None
    assert adapters.obstacle(B, 0.0, NONE) == Obstacle(
        f"does not list {B}, and this kind of engine cannot be told to load it", passes=False
    )


def test_a_restart_is_seen_in_the_list_and_in_the_engines_404() -> None:
    adapters = shelf_with(A, B)
    adapters.reported([], adapters.changes)
    assert adapters.resident() == ()
    adapters = shelf_with(A, B)
    adapters.lost(A)
    assert adapters.resident() == (B,)
    adapters.begin(A, 5.0, NONE)
    adapters.lost(A)  # a late 404 from before: the load that is under way is not forgotten
    assert adapters.comes(A)


def test_a_list_older_than_what_was_done_says_nothing() -> None:
    adapters = shelf_with(A)
    asked_for_at = adapters.changes
    adapters.begin(B, 1.0, NONE)
    adapters.loaded(B, 1.0)
    adapters.reported([A], asked_for_at)
    assert adapters.resident() == (A, B)


def test_a_lost_answer_holds_the_slot_until_the_list_tells() -> None:
    for listed, resident in (([A], (A,)), ([], ())):
        adapters = LoadedAdapters(1)
        adapters.begin(A, 1.0, NONE)
        adapters.failed(A, "no answer within 1 s", 11.0, sure=False)
        assert not adapters.has(A)
        assert adapters.obstacle(B, 2.0, NONE)  # it may be there
        assert "not known whether" in why(adapters.obstacle(A, 12.0, NONE))
        adapters.reported(listed, adapters.changes)
        assert adapters.resident() == resident
        assert adapters.obstacle(A, 12.0, NONE) is None


def test_a_failed_load_is_not_tried_again_at_once_unless_the_engine_has_it() -> None:
    adapters = LoadedAdapters(1)
    adapters.begin(A, 1.0, NONE)
    adapters.failed(A, "/v1/load_lora_adapter answers 404: no such path", 11.0, sure=True)
    assert "no such path" in why(adapters.obstacle(A, 10.9, NONE))
    assert adapters.obstacle(A, 11.0, NONE) is None
    adapters.reported([A], adapters.changes)
    assert adapters.obstacle(A, 2.0, NONE) is None


class Engine(RuleBasedStateMachine):
    """A adapters and an engine that does what it is told: in any order of loads, evictions, losses and restarts, the engine never
    holds more than its slots, and nothing that is in use is ever unloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = LoadedAdapters(2)
        self.engine: set[str] = set()
        self.loading: dict[str, list[str]] = {}
        self.used: list[str] = []
        self.now = 0.0

    @rule(name=sampled_from(NAMES))
    def use(self, name: str) -> None:
        self.now += 1
        self.adapters.charge(name, self.now)
        self.used.append(name)

    @precondition(lambda self: self.used)
    @rule()
    def finish(self) -> None:
        self.adapters.release(self.used.pop(0), self.now)

    @rule(name=sampled_from(NAMES))
    def begin(self, name: str) -> None:
        self.now += 1
        if self.adapters.has(name):
            return
        try:
            victims = self.adapters.begin(name, self.now, NONE)
        except LoraUnavailable:
            return
        assert not set(victims) & set(self.used)
        self.loading[name] = list(victims)

    @precondition(lambda self: self.loading)
    @rule(ok=booleans(), sure=booleans())
    def go_on(self, ok: bool, sure: bool) -> None:
        self.now += 20
        name = next(iter(self.loading))
        for victim in self.loading.pop(name):
            self.engine.discard(victim)
            self.adapters.unloaded(victim)
        if ok or not sure:
            self.engine.add(name)
        if ok:
            self.adapters.loaded(name, self.now)
        else:
            self.adapters.failed(name, "no", self.now, sure=sure)

    @rule()
    def poll(self) -> None:
        self.adapters.reported(self.engine, self.adapters.changes)

    @rule()
    def restart(self) -> None:
        self.engine.clear()

    @invariant()
    def within_the_slots(self) -> None:
        assert len(self.engine) <= 2
        assert len(self.adapters.resident()) <= 2


TestNeverMoreThanSlots = Engine.TestCase
TestNeverMoreThanSlots.settings = settings(max_examples=200, deadline=None)


def test_in_doubt_nothing_is_served_and_every_slot_is_counted_until_the_engine_lists() -> None:
    adapters = shelf_with(A)
    adapters.charge(A, 1.0)
    adapters.begin(B, 1.0, NONE)
    before = adapters.changes
    adapters.doubted()
    adapters.reported([], before)  # asked for earlier, so it says nothing
    assert (adapters.has(A), adapters.comes(B), adapters.idle) == (False, True, False)
    assert "slots are in use" in why(adapters.obstacle(C, 2.0, NONE))
    adapters.loaded(B, 2.0)
    adapters.reported([A, B], adapters.changes)
    assert adapters.begin(C, 3.0, NONE) == (B,)  # A has a request on it
