"""A worker that starts knows what another one has learned of engines without events, and nothing is taken over that means nothing to it."""

from pathlib import Path

import msgspec
import pytest

from gateway.placement.in_flight import InFlight
from gateway.placement.index_copy import MAX_AGE_S, MAX_COPIED_BLOCKS, copied, leave_copy, left_copy, take_copy
from gateway.process.worker_link import MAX_SNAPSHOT_BYTES
from tests.placed import Worker, chat


async def learned() -> tuple[Worker, int]:
    """A worker that has sent one prompt to `a`, and the prompt's blocks."""
    worker = Worker("a", "b")
    worker.deps.pool_states.capacity("a", 1_000_000)
    placement = await worker.placed(chat())
    in_flight = InFlight(placement, "a", worker.deps, stream=True)
    in_flight.begun()
    in_flight.over()
    worker.now += 60.0
    return worker, len(placement.request.chain)


async def test_a_new_worker_finds_what_the_other_one_sent() -> None:
    worker, blocks = await learned()
    new = Worker("a", "b")
    assert take_copy(new.deps.pool_states, await copied(worker.deps.pool_states), new.now) == blocks
    placement = await new.placed(chat())
    assert (new.held(placement, "a"), new.held(placement, "b")) == (blocks, 0)
    assert placement.route.backends[0].id == "a"


async def test_only_what_means_something_here_is_taken_over() -> None:
    worker, _ = await learned()
    payload = await copied(worker.deps.pool_states)
    gone = Worker("b")
    assert take_copy(gone.deps.pool_states, payload, gone.now) == 0
    exact = Worker("a", "b")
    exact.deps.pool_states.use_events("a")
    assert take_copy(exact.deps.pool_states, payload, exact.now) == 0
    other_hashes = msgspec.msgpack.encode([worker.deps.pool_states.generation ^ 1, msgspec.msgpack.decode(payload)[1]])
    new = Worker("a", "b")
    assert take_copy(new.deps.pool_states, other_hashes, new.now) == 0
    for wrong in (b"\xc1", b"", msgspec.msgpack.encode([worker.deps.pool_states.generation, [["a", 5, [b"1234567"]]]])):
        with pytest.raises(ValueError):
            take_copy(new.deps.pool_states, wrong, new.now)


async def test_a_copy_fits_into_a_worker_s_answer() -> None:
    assert 8 * MAX_COPIED_BLOCKS < 0.75 * MAX_SNAPSHOT_BYTES
    worker, _ = await learned()
    assert len(await copied(worker.deps.pool_states, max_blocks=10)) < 64


def test_what_a_gateway_leaves_is_found_for_a_while_by_its_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "index"
    assert left_copy(file, 1000.0) == b""
    leave_copy(file, b"old", 900.0)
    leave_copy(file, b"what it knew", 1000.0)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert left_copy(file, 1000.0) == left_copy(file, 1000.0 + MAX_AGE_S) == b"what it knew"
    assert left_copy(file, 1000.0 + MAX_AGE_S + 1) == left_copy(file, 999.0) == b"", "old, or left by a clock that went wrong"
    for wrong in (b"", b"\xc1", msgspec.msgpack.encode([1.0])):
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match="index"):
            left_copy(file, 1000.0)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(OSError):
        leave_copy(tmp_path / "index", b"x", 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
