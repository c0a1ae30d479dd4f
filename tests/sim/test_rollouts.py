"""Whole rollouts on whole gateways and simulated engines, on virtual time (`tests/world/rolling.py`): a version that is as good reaches all
of the traffic, and one that decodes 1.3 times as long goes back by itself."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.rollout.progress import Status
from tests.world.rolling import SLOWER, RollingWorld, rolled

LONG = bool(os.environ.get("TIDEGATE_LONG"))
"""With the usual plan, which takes hours of the world's time."""


def whole(world: RollingWorld) -> None:
    """Nobody noticed anything."""
    assert world.parts.defects == []
    assert len(world.asks) > 100
    for ask in world.asks:
        assert ask.status == 200, (ask.id, ask.body)
        assert ask.whole
        assert ask.body.rstrip().endswith(b"data: [DONE]"), f"{ask.id} was cut"


def pools_of(world: RollingWorld, since_s: float, until_s: float = float("inf")) -> set[bytes]:
    return {ask.headers[b"x-tidegate-pool"] for ask in world.asks if since_s <= ask.began_at < until_s}


@pytest.mark.slow
def test_a_version_that_is_as_good_gets_all_of_the_traffic(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    world = rolled(tmp_path, "h100-8b", whole_plan=LONG)
    whole(world)
    assert world.last.status is Status.DONE, world.last.reason
    assert [entry.action for entry in world.books.entries][-1] == "rollout.done"
    assert world.over_at is not None
    assert pools_of(world, 0, world.over_at) == {b"chat", b"chat-v2"}
    assert pools_of(world, world.over_at + 2) == {b"chat-v2"}
    record_property("figure", world.told_in_short)


def test_a_version_that_decodes_slower_is_rolled_back_and_nobodys_stream_is_cut(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    world = rolled(tmp_path, SLOWER, whole_plan=LONG)
    whole(world)
    assert world.last.status is Status.ROLLED_BACK, world.last.reason
    assert "inter-token latency" in world.last.reason
    assert "worse" in world.last.reason
    entry = world.books.entries[-1]
    assert (entry.actor, entry.action, entry.target) == ("rollout", "rollout.rollback", "rollout/v2")
    assert world.told[-1]["reason"] == world.last.reason
    assert world.over_at is not None
    assert pools_of(world, world.over_at + 10) == {b"chat"}, "within ten seconds of the verdict"
    record_property("figure", world.told_in_short)
