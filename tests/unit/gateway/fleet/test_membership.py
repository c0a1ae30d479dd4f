import asyncio
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from backends.discovery.dns import DnsSource, ResolvedAddresses
from domain.membership import Member, SourceError
from gateway.fleet.membership import Membership, StaticSource
from gateway.fleet.sources import LastGood, OrdersUnreadable

A, B = Member("chat", "a", "http://h:1", "static"), Member("chat", "b", "http://h:2", "file")


class Source:
    """Says what it is told to."""

    name = "file x"
    owner: Any = "file"
    pool = "chat"
    every_s = 1.0

    def __init__(self, *members: Member, keep_s: float = inf) -> None:
        self.next: Sequence[Member] | Exception = members
        self.keep_s = keep_s

    async def read(self) -> Sequence[Member]:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


class Roster:
    def __init__(self) -> None:
        self.wanted: Mapping[str, Member] = {}

    def apply(self, wanted: Mapping[str, Member]) -> None:
        self.wanted = wanted


class World:
    def __init__(self, source: Source, orders: dict[str, float] | None = None, kept: LastGood | None = None) -> None:
        self.now = 0.0
        self.roster = Roster()
        sources = [StaticSource([A]), source]
        self.membership = Membership(sources, {"chat"}, self.roster, lambda: self.now, lambda: orders or {}, kept)  # type: ignore[arg-type]  # a Roster


async def test_drains_that_cannot_be_read_stay_in_force_and_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, float] | OrdersUnreadable] = [{"b": 5.0}, OrdersUnreadable("x"), OrdersUnreadable("x"), {"a": 1.0}]
    world = World(Source(B))
    grace = []

    def orders() -> dict[str, float]:
        grace.append({i: m.drain_grace_s for i, m in world.roster.wanted.items()})
        answer = answers.pop(0) if answers else {"a": 1.0}
        if isinstance(answer, OrdersUnreadable):
            raise answer
        return answer

    world.membership._orders = orders
    monkeypatch.setattr("gateway.fleet.membership.ORDERS_EVERY_S", 0.0)
    await world.membership.first()
    with capture_logs() as logs:
        following = asyncio.create_task(world.membership.run())
        while len(grace) < 6:
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert grace[1:4] == [{"a": None, "b": 5.0}] * 3
    assert grace[5] == {"a": 1.0, "b": None}
    assert [log["event"] for log in logs] == ["drains cannot be read, keeping the last ones", "drains can be read again"]


async def test_all_sources_make_one_fleet() -> None:
    world = World(Source(B))
    await world.membership.first()
    assert world.roster.wanted == {"a": A, "b": B}


async def test_engines_that_are_left_out_by_their_labels_are_counted_and_told_once() -> None:
    class Choosing(Source):
        left_out: Mapping[str, int] = {}
        trouble = ""

    source = Choosing(B)
    world = World(source)
    with capture_logs() as said:
        for left_out in (
            {},
            {"tidegate/revision r1": 2},
            {"tidegate/revision r1": 3, "no tidegate/revision": 1},
            {"no tidegate/revision": 1},
        ):
            source.left_out = left_out
            await world.membership.first()
    assert [(line["labels"], line["engines"]) for line in said] == [(["tidegate/revision r1"], 2), (["no tidegate/revision"], 4)]
    state = world.membership.states()[1]
    assert (state.members, state.left_out, state.labels) == (1, 1, ("no tidegate/revision",))
    source.next = SourceError("away")
    await world.membership.first()
    assert world.membership.states()[1].left_out == 1


async def test_a_source_of_which_a_part_cannot_be_read_is_followed_and_does_not_pass_for_well() -> None:
    class Half(Source):
        left_out: Mapping[str, int] = {}
        trouble = ""

    source = Half(B)
    world = World(source)
    await world.membership.first()
    source.trouble, source.left_out = "pods are forbidden", {"no tidegate/pool": 3}
    world.now = 40.0
    with capture_logs() as said:
        for _ in range(3):
            source.next = [A]
            await world.membership.first()
        state = world.membership.states()[1]
        assert (state.members, state.trouble, state.age_s, state.left_out) == (1, "pods are forbidden", 40.0, 0)
        source.trouble = ""
        await world.membership.first()
    assert [line["event"] for line in said] == [
        "a part of a source cannot be read, keeping what was known",
        "source can be read again",
        "engines are left out by their labels",
    ]
    state = world.membership.states()[1]
    assert (state.trouble, state.age_s, state.left_out) == ("", 0.0, 3)


async def test_a_source_that_fails_keeps_its_last_answer_and_says_so_once() -> None:
    source = Source(B)
    world = World(source)
    await world.membership.first()
    source.next = SourceError("line 3 is wrong")
    world.now = 40.0
    with capture_logs() as said:
        await world.membership.first()
        await world.membership.first()
    assert world.roster.wanted == {"a": A, "b": B}
    assert [line["reason"] for line in said] == ["line 3 is wrong"]
    state = world.membership.states()[1]
    assert (state.trouble, state.members, state.age_s) == ("line 3 is wrong", 1, 40.0)
    source.next = []
    await world.membership.first()
    assert (world.roster.wanted, world.membership.states()[1].trouble) == ({"a": A}, "")


@pytest.mark.fault("DNS change")
async def test_an_answer_that_is_too_old_is_given_up() -> None:
    source = Source(B, keep_s=600.0)
    world = World(source)
    await world.membership.first()
    source.next = SourceError("SERVFAIL")
    world.now = 599.0
    await world.membership.first()
    assert "b" in world.roster.wanted
    world.now = 601.0
    await world.membership.first()
    assert world.roster.wanted == {"a": A}


async def test_what_an_operator_drained_is_drained_whoever_names_it() -> None:
    world = World(Source(B), {"a": 7.0})
    await world.membership.first()
    assert world.roster.wanted["a"].drain_grace_s == 7.0
    assert world.roster.wanted["b"].drain_grace_s is None


async def test_contradictions_are_kept_for_whoever_asks() -> None:
    world = World(Source(Member("chat", "a", "http://h:9", "file")))
    await world.membership.first()
    assert world.roster.wanted == {"a": A}
    assert len(world.membership.clashes) == 1


async def test_a_worker_that_starts_while_a_source_is_away_takes_over_what_the_others_had(tmp_path: Path) -> None:
    unix = 1000.0
    kept = LastGood(tmp_path, lambda: unix)
    source = Source(B, keep_s=600.0)
    await World(source, kept=kept).membership.first()
    source.next = SourceError("SERVFAIL")
    unix = 1500.0
    later = World(source, kept=kept)
    await later.membership.first()
    assert later.roster.wanted == {"a": A, "b": B}
    assert later.membership.states()[1].age_s == 500.0
    later.now = 101.0
    await later.membership.first()
    assert later.roster.wanted == {"a": A}
    unix = 1700.0
    too_late = World(source, kept=kept)
    await too_late.membership.first()
    assert too_late.roster.wanted == {"a": A}


async def test_a_starting_worker_to_which_dns_says_nobody_takes_over_what_the_others_had(tmp_path: Path) -> None:
    kept = LastGood(tmp_path, lambda: 1000.0)
    answers: list[ResolvedAddresses] = [ResolvedAddresses("10.0.0.1", 8000)]

    async def lookup() -> list[ResolvedAddresses]:
        return answers

    def dns() -> Any:
        return DnsSource("chat", "engines.svc", "http", 5.0, lookup)

    await World(dns(), kept=kept).membership.first()
    answers = []
    starting = World(dns(), kept=kept)
    for believed in (False, False, True):
        await starting.membership.first()
        assert ("chat-10.0.0.1-8000" not in starting.roster.wanted) == believed
        assert (kept.load(dns()) or ([], 0.0))[0] == [] if believed else len((kept.load(dns()) or ([], 0.0))[0]) == 1


async def test_sources_that_keep_a_connection_are_closed() -> None:
    class Connected(Source):
        closed = False

        async def close(self) -> None:
            self.closed = True

    source = Connected(B)
    await World(source).membership.close()
    assert source.closed
