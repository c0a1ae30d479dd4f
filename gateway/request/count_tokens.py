"""`POST /v1/messages/count_tokens` and `POST /v1/responses/input_tokens`: the tokens of a prompt that is sent to nobody.

The prompt is read as one that is to be served: the same checks, the same policy, the same chat, tools and all. So the count is that of the
limits and of the router: the served model's own tokenizer where the pool has one, else an estimate from the bytes per token that its
engines have reported. A count is a request of its key, as a judgement of guard rules is (`guard_texts.py`).
"""

from typing import Final

import msgspec

from domain.ask import Ask, Endpoint
from domain.faults import Fault
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.request.admit import admit_without_tokens
from gateway.request.authenticate import authenticate
from gateway.request.interpret import interpret
from gateway.request.reply_headers import reply_headers
from gateway.request.settle import settle
from gateway.story import Story

WAIT_S: Final = 2.0
"""Longest wait for the tokenizer, which takes a second for several megabytes of text; after it the answer is the estimate."""


class _TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


async def count_tokens(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer with the number of tokens of the prompt.

    Raises:
        Fault: the key, the body, the named model or a limit is why there is no answer.
    """
    assert exchange.translation is not None
    story.asked.endpoint = exchange.translation.path
    caller = await authenticate(exchange, story, deps)
    ask, rule, grant = await interpret(Endpoint.CHAT, exchange, caller, story, deps)
    story.asked.stream = False
    story.asked.dealt = story.asked.dealt_prompt = None  # nothing is served, so no arm of a rollout has an outcome
    hold = await admit_without_tokens(caller, grant, story, deps)
    try:
        count = _TokenCount(await _tokens_of(ask, rule.pool, caller.tenant, deps))
        story.settled.status = 200
        exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False), msgspec.json.encode(count))
    except Fault as fault:
        story.settled.fault = fault
        raise
    finally:
        await settle(hold, story, deps)


async def _tokens_of(ask: Ask, pool: str, tenant: str, deps: Deps) -> int:
    counted = await deps.prompt_counts.count(ask, pool, tenant, wait_s=WAIT_S)
    return counted if counted is not None else (await deps.prompts.read(ask, pool, 0, tenant, wait_s=WAIT_S)).tokens
