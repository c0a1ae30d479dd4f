import msgspec

from domain.ask import Endpoint
from gateway.placement.decisions import Explained, decision
from gateway.placement.explain import EXPLAIN_LINE, WOULD_LINE, Would, WouldAnswer, answers, supposed
from tests.placed import Worker, chat

BODY = b'{"model":"sim","messages":[{"role":"user","content":"hello"}]}'


async def test_a_decision_is_told_by_its_id_and_one_that_is_not_there_is_not() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat())
    kept = decision(placement.route, placement.request, ("req-1", "req-2"), 5.0, "sim", "chat")
    kept.caller_id = "theirs"
    worker.deps.decisions.keep(kept)
    explain = answers(lambda: worker.deps)[EXPLAIN_LINE]
    found = msgspec.msgpack.decode(await explain(b"req-1"), type=Explained)
    assert (found.request_id, found.chosen, len(found.contenders)) == ("req-1", placement.route.backends[0].id, 2)
    assert await explain(b"req-2") == await explain(b"theirs\nacme") == await explain(b"req-1\nacme") == msgspec.msgpack.encode(found)
    assert [await explain(line) for line in (b"another", b"\xff", b"theirs", b"theirs\nbolt", b"req-1\nbolt")] == [b""] * 5
    assert await answers(lambda: None)[EXPLAIN_LINE](b"req-1") == b""


async def test_what_would_be_chosen_is_told_and_nothing_comes_of_it() -> None:
    worker = Worker("a", "b")
    line = answers(lambda: worker.deps)[WOULD_LINE]
    told = msgspec.msgpack.decode(await line(msgspec.msgpack.encode(Would("acme", Endpoint.CHAT.value, BODY))), type=WouldAnswer)
    assert told.explained is not None
    assert told.explained.chosen in {"a", "b"}
    again = await supposed(Would("acme", Endpoint.CHAT.value, BODY), worker.deps)
    assert again.explained is not None
    assert again.explained.chosen == told.explained.chosen  # it throws no dice
    assert (worker.deps.pool_states.total(), len(worker.deps.decisions)) == (0, 0)


async def test_a_request_that_would_be_refused_is_told_why() -> None:
    deps = Worker("a").deps
    for body, about, param in (
        (b"{", "would be refused", ""),
        (b'{"model":"sim","messages":[{"role":7,"content":"x"}]}', "would be refused", "request.messages"),
        (BODY.replace(b"sim", b"other"), "has no model 'other'", "request.model"),
    ):
        refusal = (await supposed(Would("acme", Endpoint.CHAT.value, body), deps)).refusal
        assert refusal is not None
        assert about in refusal.message
        assert refusal.param.startswith(param)
