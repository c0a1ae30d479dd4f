"""`POST /v1/guard` and `POST /v1/moderations`: what the guard rules of a caller's tenant say of texts that are sent to nobody.

A judgement is a request of its key: it counts in the limits on requests and takes a slot of concurrency, and it uses no tokens and no
money. The ledger has a row of it, or else the limits, which are compared with the ledger, would forget it again. The rules are those of
the policy for the key's tenant and project, and for the model that is named; those of `rules:` in the policy, which look at whole
requests, are not among them.

What rules say here is in the answer alone: it is counted neither in the metrics of guard rules nor in the audit, which are of requests
that models serve.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from domain import retry_after
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.guards.detect import MAX_TEXTS, Sample, judged_by, parted
from gateway.http.edge.exchange import Exchange
from gateway.http.openai.controls import GUARDS
from gateway.http.openai.guard_texts import (
    TextsToJudge,
    guard_question,
    moderation_question,
    render_moderations,
    render_verdicts,
)
from gateway.request.admit import admit_without_tokens
from gateway.request.authenticate import authenticate, grant_of
from gateway.request.guards_asked import tagged
from gateway.request.permissions import exists_for
from gateway.request.reply_headers import reply_headers
from gateway.request.settle import settle
from gateway.story import Story
from guardrails.guard_set import GuardSet
from guardrails.messages import EarlierCall, Readable
from guardrails.placeholders import Placeholders
from guardrails.policy import DetectorRule
from guardrails.verdict import GuardVerdict
from policies.compile import TenantPolicy
from tenancy.grant import Grant

GUARD: Final = "/v1/guard"
MODERATIONS: Final = "/v1/moderations"

MAX_BODY_BYTES: Final = 1024 * 1024
"""A few hundred pages of text. The scan takes processor time of the worker in proportion to it."""
ON_LOOP_CHARS: Final = 32 * 1024
"""Longer texts are scanned in a thread, so that the worker's loop is held for a few milliseconds at most."""

JSON_TYPE: Final = b"application/json"


async def judge_texts(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/guard`.

    Raises:
        Fault: the key, the body, the named model or rule, or a limit is why there is no answer.
    """

    def render(question: TextsToJudge, guards: GuardSet | None, verdicts: Sequence[GuardVerdict]) -> bytes:
        version, calls = ("", []) if guards is None else (guards.version, call_verdicts(question.calls, guards))
        return render_verdicts(question, verdicts, version, story.gateway_id, calls)

    await _answer(GUARD, guard_question, render, exchange, story, deps)


async def moderate(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/moderations`.

    Raises:
        Fault: as `judge_texts`; GUARD_UNAVAILABLE where a rule that fails closed could not judge.
    """

    def render(question: TextsToJudge, guards: GuardSet | None, verdicts: Sequence[GuardVerdict]) -> bytes:
        failed = next((verdict for verdict in verdicts if verdict.ended == "unavailable"), None)
        if failed is not None:
            message = "A guard rule of the policy could not judge the text. Try again."
            raise Fault(Kind.GUARD_UNAVAILABLE, message, param="input", retry=retry_after.SOON, detail=f"rule {failed.by}")
        return render_moderations(question, verdicts, story.gateway_id)

    await _answer(MODERATIONS, moderation_question, render, exchange, story, deps)


JUDGEMENTS: Final[dict[str, Callable[[Exchange, Story, Deps], Awaitable[None]]]] = {GUARD: judge_texts, MODERATIONS: moderate}
"""The routes of this module."""

Render = Callable[[TextsToJudge, GuardSet | None, Sequence[GuardVerdict]], bytes]


async def _answer(path: str, read: Callable[[bytes], TextsToJudge], render: Render, exchange: Exchange, story: Story, deps: Deps) -> None:
    story.asked.endpoint = path
    caller = await authenticate(exchange, story, deps)
    story.asked.user = caller.user
    grant = grant_of(caller, deps)
    refusing_scope = grant.rights.refuses_endpoint(path)
    if refusing_scope is not None:
        raise Fault(Kind.NOT_PERMITTED, f"{path} may not be used here (set for {refusing_scope}).")
    if exchange.head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON_TYPE:
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as JSON, with the header 'content-type: application/json'.")
    body = await exchange.body((MAX_BODY_BYTES,), caller.tenant)
    story.body_at = deps.clock()
    story.asked.request_bytes = len(body)
    question = read(body)
    guards = _rules_for(question, caller, grant, story, deps)
    hold = await admit_without_tokens(caller, grant, story, deps)
    try:
        reply = render(question, guards, await verdicts_on(question.texts, guards, caller.tenant, deps))
        story.settled.status = 200
        exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False) + b"cache-control: no-store\r\n", reply)
    except Fault as fault:
        story.settled.fault = fault  # a request whose failure is not the caller's counts as not sent
        raise
    finally:
        await settle(hold, story, deps)


def _rules_for(question: TextsToJudge, caller: Caller, grant: Grant, story: Story, deps: Deps) -> GuardSet | None:
    """The rules that judge; None for no rules. Raises Fault: MODEL_NOT_FOUND or INVALID_VALUE."""
    policies = deps.live.policies
    story.asked.policy_digest = policies.digest
    policy = policies.for_tenant(caller.tenant)
    rule = policy.models.get(question.model) if policy is not None and question.model else None
    if question.model and (rule is None or not exists_for(grant.rights, rule)):
        message = "The model does not exist or you do not have access to it. Leave 'model' out for the rules of every model."
        raise Fault(Kind.MODEL_NOT_FOUND, message, param="model")
    if rule is not None:
        story.asked.model = rule.name
    return guards_for(policy, caller, story.asked.model, question.guards)


def guards_for(policy: TenantPolicy | None, caller: Caller, model: str, asked: Sequence[str]) -> GuardSet | None:
    """The rules of the policy for a caller and a model, with those that the key and the request ask for; None for no rules.

    Args:
        model: the policy's name of the model; empty for the rules of every model.
        asked: ids of rules.

    Raises:
        Fault: INVALID_VALUE for a rule that does not exist there.
    """
    levels = None if policy is None else policy.guards
    choice = None if levels is None else levels.of(caller.project, model, "")
    unknown = next((name for name in asked if choice is None or name not in choice.ids), None)
    if unknown is not None:
        message = f"There is no guard rule {ascii(unknown)[:66]} here. Leave it out, or ask your operator for it."
        raise Fault(Kind.INVALID_VALUE, message, param=GUARDS)
    if choice is None:
        return None
    return choice.applied(frozenset((*asked, *tagged(caller))))


async def verdicts_on(texts: Sequence[Readable], guards: GuardSet | None, tenant: str, deps: Deps) -> list[GuardVerdict]:
    """The verdict on each text, by the rules for its direction: first those that this process evaluates, then those with detectors on
    what the first ones let pass. The places of a detector's findings are those in that text."""
    if guards is None:
        return [GuardVerdict(text=text.text) for text in texts]
    judge = partial(_judged, texts, guards, Placeholders(deps.unpredictable))
    short = sum(len(text.text) for text in texts) <= ON_LOOP_CHARS
    verdicts = judge() if short else await deps.loop.run_in_executor(None, judge)
    changing, noting = parted(guards)
    for rules in (*((rule,) for rule in changing), tuple(noting)):
        if rules:
            await _ask(rules, texts, verdicts, tenant, deps)
    return verdicts


def _judged(texts: Sequence[Readable], guards: GuardSet, placeholders: Placeholders) -> list[GuardVerdict]:
    return [guards.chain(text.direction, reasoning=text.beside).judge(text.text, placeholders.label) for text in texts]


def call_verdicts(calls: Sequence[EarlierCall], guards: GuardSet) -> list[GuardVerdict]:
    """The verdict on each call of a tool; none where no rule looks at calls."""
    chain = guards.chain("tool_arguments")
    return [chain.judge_call(call.name, call.arguments) for call in calls] if chain.calls else []


async def _ask(rules: Sequence[DetectorRule], texts: Sequence[Readable], verdicts: list[GuardVerdict], tenant: str, deps: Deps) -> None:
    """Add to the verdicts what rules with detectors say of the texts that may pass so far."""
    samples: list[Sample] = [
        (str(at), text.direction, verdict.text)
        for at, (text, verdict) in enumerate(zip(texts, verdicts, strict=True))
        if verdict.text and not verdict.refused
    ]
    for begin in range(0, len(samples), MAX_TEXTS):
        for (at, _, _), said in await judged_by(rules, samples[begin : begin + MAX_TEXTS], tenant, deps.detectors):
            verdicts[int(at)] = joined(verdicts[int(at)], said)


def joined(first: GuardVerdict, second: GuardVerdict) -> GuardVerdict:
    """Two verdicts on one text as one; `second` is of the text that `first` let pass."""
    changed = any(found.mode in ("redact", "replace") for found in second.findings)
    refusing = first if first.refused else second
    return GuardVerdict(
        findings=first.findings + second.findings,
        ended=refusing.ended,
        by=refusing.by,
        cut=refusing.cut,
        failed=first.failed + second.failed,
        text=second.text if changed else first.text,
    )
