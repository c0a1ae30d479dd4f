import pytest

from backends.kv.blocks import HeldBlocks, KvState, least
from backends.kv.events import Stored


def chain(*hashes: int) -> Stored:
    return Stored(list(hashes), None, [1] * len(hashes), 1)


def test_a_block_is_held_until_its_last_copy_is_removed() -> None:
    held = HeldBlocks()
    held.stored(chain(1, 2))
    held.stored(chain(1))
    held.removed([1, 9])
    assert held.snapshot() == {1, 2}
    held.removed([1])
    assert 1 not in held
    assert 2 in held
    held.cleared()
    assert held.count == 0


@pytest.mark.req("ROUTERS-7")
def test_the_bound_holds_at_every_insert_and_is_said() -> None:
    held = HeldBlocks(max_blocks=3)
    for block in range(10):
        held.stored(chain(block))
        assert held.count <= 3
    assert held.overflow == "the engine holds more than 3 blocks"
    assert held.snapshot() == {0, 1, 2}, "what is known stays known"
    held.removed([0])
    assert held.overflow, "nothing tells what else was not remembered"
    held.cleared()
    assert held.overflow == ""


@pytest.mark.req("ROUTERS-9")
def test_churn_leaves_nothing_behind() -> None:
    held = HeldBlocks()
    for cycle in range(10_000):
        held.stored(chain(cycle, cycle + 1, cycle + 2))
        held.removed([cycle + 2, cycle + 1, cycle])
    assert held.count == 0


def test_workers_together_know_what_the_one_knows_that_knows_least() -> None:
    exact, more, lost = KvState(90, True), KvState(100, True), KvState(120, False, "gap of 3 batches")
    assert least(exact, more) == exact
    assert least(exact, lost) == least(lost, exact) == lost
    assert least(None, exact) == least(exact, None) == exact
    assert least(None, None) is None
