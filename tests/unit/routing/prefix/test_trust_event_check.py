from collections.abc import Callable

import pytest

from routing.prefix.chain import of_tokens, root
from routing.prefix.engine_blocks import EngineBlocks, StoredBlocks
from routing.prefix.index import PrefixIndex
from routing.prefix.trust import CHECKED_PROMPTS, EVENT_LAG_S, MAX_DUE_CHECKS, EventCheck
from tests.unit.routing.prefix.test_engine_blocks import Cache

SECRET = b"0123456789abcdef"


class Backend:
    """Prompts sent to an engine, and what its events say of them."""

    def __init__(self, salt_of_events: str = "") -> None:
        self.index = PrefixIndex(100_000)
        self.blocks = EngineBlocks(self.index, "a", lambda _, salt: root("m", "", salt or "", SECRET))
        self.check, self.cache, self.now, self.salt = EventCheck(), Cache(16), 0.0, salt_of_events

    def ask(self, number: int, length: int = 640, *, tells: bool = True) -> None:
        tokens = [number, *range(length - 1)]
        chain = of_tokens(root("m", "", "", SECRET), tokens)
        self.index.predict("a", chain, self.now)
        self.check.answered(chain, self.now)
        if tells:
            events: list[StoredBlocks] = [*self.cache.store(tokens, self.salt)]
            for event in events:
                self.blocks.stored(event)
        self.now += 1.0
        for block in self.check.due(self.now):
            self.check.checked(self.index.stored_by_events("a", block), self.blocks.counts.stored)


@pytest.mark.req("ROUTERS-26")
def test_an_engine_that_tells_nothing_is_noticed_after_fifty_long_prompts(record_property: Callable[[str, object], None]) -> None:
    backend = Backend()
    for number in range(200):
        backend.ask(number, length=100, tells=False)
    assert backend.check.reason == "", "short prompts leave no whole block behind"
    asked = 0
    while not backend.check.reason:
        backend.ask(asked % 2, tells=False)  # what is always on its way again is not told either
        asked += 1
    assert backend.check.reason == "no event tells of a block, after 50 prompts of 2 blocks and more"
    assert asked <= CHECKED_PROMPTS + EVENT_LAG_S
    record_property("figure", f"said after {asked} long prompts, one a second, the last {EVENT_LAG_S:.0f} of them not yet looked for")


@pytest.mark.req("ROUTERS-12")
def test_events_under_another_salt_are_noticed_and_so_is_that_it_is_mended(record_property: Callable[[str, object], None]) -> None:
    backend = Backend(salt_of_events="another")
    for number in range(60):
        backend.ask(number)
    assert backend.check.reason.startswith("its events tell of other blocks than those of 50 of the last 50 prompts")
    assert "salt" in backend.check.reason
    backend.salt = ""
    mended = 60
    while backend.check.reason:
        backend.ask(mended)
        mended += 1
    assert mended - 60 <= CHECKED_PROMPTS / 2 + EVENT_LAG_S
    record_property("figure", f"another salt said after 50 prompts, taken back {mended - 60} after it was mended")


def test_events_about_the_prompts_sent_say_nothing() -> None:
    backend = Backend()
    for number in range(200):
        backend.ask(number)
        assert backend.check.reason == ""


def test_what_waits_to_be_looked_for_is_bounded() -> None:
    check = EventCheck()
    for number in range(10 * MAX_DUE_CHECKS):
        check.answered([number, number + 1], 0.0)
    assert len(check.due(EVENT_LAG_S)) == MAX_DUE_CHECKS
    assert check.due(1e9) == []
