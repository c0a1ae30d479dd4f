"""What processes of the release before tell others is understood by today's, and the other way round (`tests/fixtures/release-0.1`).

The supervisor, the admin process and the workers of one gateway are of one release, except during a hot restart, when two releases have
one run directory. Workers of gateways that share a store hear each other for as long as an upgrade takes.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.process.sibling_bus import VERSION, TopicNumber
from tests.record_messages import frames_of, lacks, read, tell
from tests.release_before import MESSAGES, code_before, run_before

TAKEN = json.loads((MESSAGES / "taken.json").read_text())
"""What a worker of the release before takes from these messages."""
VERSION_BYTE = 5
"""Where the version stands in the first message of a connection."""


def bus_of(folder: Path) -> dict[int, bytes]:
    """The last message of each kind of one connection; kind 0 is the hello."""
    return dict(frames_of((folder / "bus.bin").read_bytes()))


def between_hosts(folder: Path) -> list[bytes]:
    """The messages on the channel between hosts."""
    return [bytes.fromhex(message) for message in json.loads((folder / "between-hosts.json").read_text())]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The messages, to be changed."""
    return Path(shutil.copytree(MESSAGES, tmp_path / "messages"))


def test_a_message_of_every_topic_was_recorded() -> None:
    topics = {number for name, number in vars(TopicNumber).items() if name.isupper()}
    assert bus_of(MESSAGES).keys() - {0} <= topics, "a number means one topic for ever"
    assert all(bus_of(MESSAGES).values())
    assert TAKEN["bus"]["unreadable"] == TAKEN["hosts"]["unreadable"] == 0
    assert TAKEN["bus"]["first"] == TAKEN["hosts"]["first"] == "quiet", "what the queue of another worker served counts"
    assert TAKEN["copy"]["blocks"] == 3


async def test_today_s_worker_takes_from_them_what_one_of_its_own_release_does() -> None:
    assert lacks(await read(MESSAGES), TAKEN) == []


async def test_the_form_of_messages_grows_at_the_end_or_by_name_or_has_another_version(tmp_path: Path) -> None:
    await tell(tmp_path)
    before, today = bus_of(MESSAGES), bus_of(tmp_path)
    changed = [
        kind for kind in before.keys() - {0} if kind not in today or lacks(decoded(today[kind]), decoded(before[kind]), f"topic {kind}")
    ]
    assert changed == [] or before[0] != today[0], "today's messages have another form: raise sibling_bus.VERSION"
    one, other = between_hosts(MESSAGES), between_hosts(tmp_path)
    heads = [[message[:22] for message in messages] for messages in (one, other)]  # version, flags, host, worker, process
    assert heads[0] == heads[1] or one[0][0] != other[0][0], (
        "the head of messages between hosts has another form: raise sibling_bus.VERSION"
    )
    news = [{kind: decoded(payload) for kind, payload in frames_of(messages[1][22:])} for messages in (one, other)]
    assert lacks(news[1], news[0]) == [] or one[0][0] != other[0][0]
    for file in ("prefixes.bin", "snapshot.bin"):
        assert lacks(decoded((tmp_path / file).read_bytes()), decoded((MESSAGES / file).read_bytes()), file) == []
    assert lacks(json.loads((tmp_path / "supervisor.json").read_text()), json.loads((MESSAGES / "supervisor.json").read_text())) == []


def decoded(payload: bytes) -> Any:
    """The fields of a message, whoever reads it."""
    return msgspec.msgpack.decode(payload)


@pytest.mark.slow
async def test_its_own_code_takes_from_today_s_messages_what_it_takes_from_its_own(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "today").mkdir()
    await tell(tmp_path / "today")
    assert lacks(json.loads(run_before(code_before(tmp_path / "code"), "record_messages.py", "read", str(tmp_path / "today"))), TAKEN) == []


async def test_a_worker_of_another_version_is_not_listened_to(copied: Path) -> None:
    stream = bytearray((copied / "bus.bin").read_bytes())
    assert stream[VERSION_BYTE] == VERSION
    stream[VERSION_BYTE] += 1
    (copied / "bus.bin").write_bytes(stream)
    messages = [bytes([message[0] + 1]) + message[1:] for message in between_hosts(copied)]
    (copied / "between-hosts.json").write_text(json.dumps([message.hex() for message in messages]))
    found = await read(copied)
    for way in ("bus", "hosts"):
        taken = found[way]
        assert (taken["dispatches"], taken["polls"], taken["signals"], taken["breakers"]) == (0, [], [], {})
        assert (taken["requests"], taken["first"], taken["unreadable"]) == ([0, 0], "acme", 0)
    assert found["hosts"]["siblings"] == [[], [], []]


async def test_a_topic_that_is_not_known_is_passed_over(copied: Path) -> None:
    stream = (copied / "bus.bin").read_bytes()
    hello = 5 + int.from_bytes(stream[:4], "little")
    (copied / "bus.bin").write_bytes(stream[:hello] + b"\x03\x00\x00\x00\xff\xc1\xc1\xc1" + stream[hello:])
    assert lacks(await read(copied), TAKEN) == []


async def test_a_message_of_another_form_is_counted_and_takes_nothing_with_it(copied: Path) -> None:
    stream = (copied / "bus.bin").read_bytes()
    frames = frames_of(stream)
    hello = 5 + len(frames[0][1])
    others = b"".join(b"\x01\x00\x00\x00" + bytes([kind]) + b"\x01" for kind, _ in frames[1:])  # the number 1 in place of a list
    (copied / "bus.bin").write_bytes(stream[:hello] + others + stream[hello:])
    found = await read(copied)
    assert found["bus"]["unreadable"] == len(frames) - 1
    assert lacks({**found["bus"], "unreadable": 0}, TAKEN["bus"]) == []


async def test_prefixes_of_another_secret_are_left_out(copied: Path) -> None:
    left = decoded((copied / "prefixes.bin").read_bytes())
    copy = decoded(left[1])
    (copied / "prefixes.bin").write_bytes(msgspec.msgpack.encode([left[0], msgspec.msgpack.encode([copy[0] + 1, *copy[1:]])]))
    found = await read(copied)
    assert found["copy"] == {"blocks": 0, "prefixes": [{}, {}, {}]}
