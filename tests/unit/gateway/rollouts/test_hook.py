import asyncio
import hmac
import json
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from gateway.rollouts.hook import MAX_WAITING, PAUSES_S, SIGNATURE, RolloutHook, signature

SECRET = b"s" * 32


class Receiver:
    """Answers as it is told to; a text stands for a transport that fails."""

    def __init__(self, *answers: int | str) -> None:
        self.answers = list(answers)
        self.got: list[tuple[bytes, str]] = []
        self.slept: list[float] = []

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        self.got.append((body, headers[SIGNATURE]))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, str):
            raise OSError(answer)
        return answer

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def hook(self) -> RolloutHook:
        return RolloutHook(self.post, SECRET, lambda: 1_800_000_000.9, self.sleep)


async def told(hook: RolloutHook, *messages: dict[str, object]) -> None:
    """Tells and waits until all of it is delivered or given up."""
    for message in messages:
        hook.tell(message)
    running = asyncio.create_task(hook.run())
    while hook.counts.sent + hook.counts.failed < len(messages):
        await asyncio.sleep(0)
    running.cancel()


async def test_messages_are_signed_so_that_receivers_can_check_them_and_their_time() -> None:
    receiver = Receiver()
    await told(receiver.hook(), {"event": "rollout.done", "share": 1.0})
    ((body, given),) = receiver.got
    assert json.loads(body) == {"event": "rollout.done", "share": 1.0}
    at, _, digest = given.partition(",v1=")
    wanted = hmac.new(SECRET, at.removeprefix("t=").encode() + b"." + body, "sha256").hexdigest()
    assert (at, digest) == ("t=1800000000", wanted)
    assert signature(b"other", 1_800_000_000, body) != given


async def test_what_fails_is_tried_again_and_the_next_message_comes_after_it() -> None:
    receiver = Receiver("connection refused", 503, 204, 200)
    hook = receiver.hook()
    await told(hook, {"n": 1}, {"n": 2})
    assert [json.loads(body)["n"] for body, _ in receiver.got] == [1, 1, 1, 2]
    assert receiver.slept == list(PAUSES_S[:2])
    assert (hook.counts.sent, hook.counts.failed) == (2, 0)


@pytest.mark.parametrize("answer", [500, 301, 404, "no route to host"])
async def test_what_never_arrives_is_given_up_counted_and_said_without_the_secret(answer: int | str) -> None:
    receiver = Receiver(*[answer] * (1 + len(PAUSES_S)))
    hook = receiver.hook()
    with capture_logs() as said:
        await told(hook, {"n": 1})
    assert (hook.counts.failed, len(receiver.got), len(said)) == (1, 1 + len(PAUSES_S), 1)
    assert str(answer) in said[0]["why"]
    assert "sss" not in str(said)


async def test_more_than_can_wait_is_dropped_and_counted() -> None:
    hook = Receiver().hook()
    for n in range(MAX_WAITING + 3):
        hook.tell({"n": n})
    assert hook.counts.failed == 3
