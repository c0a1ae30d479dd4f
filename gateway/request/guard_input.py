"""The step of `gateway/lifecycle.py` that lets guard rules look at a request, between `admit` and whatever sends the prompt anywhere.

Rules that this process evaluates come first; of texts that were judged before, the verdict is remembered. The changes are made in the
Ask, so that the cache, the mirror, placing and the engine see nothing else. Detectors are asked next: those that change texts are waited
for here. Those that block answer while the request is looked up and waits for an engine; they are joined before it is sent, and before a
kept answer is given. Nobody waits for those that flag or shadow, but for the cache where they look for personal data.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from domain import retry_after
from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.guards.detect import Sample, judged_by, parted
from gateway.guards.remembered import RememberedVerdicts
from gateway.placement.place import Placement
from gateway.story import Story
from guardrails.guard_set import GuardSet
from guardrails.messages import Readable, RequestTexts, texts, with_texts
from guardrails.placeholders import Placeholders
from guardrails.policy import CHANGING, DetectorRule
from guardrails.verdict import GuardVerdict

ON_LOOP_BYTES: Final = 32 * 1024
"""A longer request is read and scanned in a thread, so that the worker's loop is held for a few milliseconds at most (R27)."""

SHOWING: Final = frozenset({"logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"})
"""Parameters that make an engine put the answer, or the prompt, into the reply a second time, where no rule reads it."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def guard_input(ask: Ask, story: Story, deps: Deps) -> Ask:
    """The Ask as the rules of its policy let it pass. Called where the request has rules (`story.asked.guards`).

    Raises:
        Fault: GUARD_BLOCKED with the path of the text; GUARD_UNAVAILABLE where a rule could not judge and refuses then;
            UNSUPPORTED_PARAMETER for a parameter that would show the answer around the rules; INVALID_VALUE for a prompt of token ids.
    """
    if story.trace is not None:
        story.trace.begin("guard_input", deps.clock())
    guards, caller = story.asked.guards, story.asked.caller
    assert guards is not None
    assert caller is not None
    if guards.changes_replies:
        refuse_showing(ask)
    if not (guards.reads_requests or guards.needs_system):
        return ask
    read = partial(_judged, ask.fields, guards, caller.tenant, deps.remembered)
    found, verdicts = read() if len(ask.fields) <= ON_LOOP_BYTES else await deps.loop.run_in_executor(None, read)
    story.asked.guards = guards.bound(found.system, caller.tenant)
    story.guarded.unread = tuple(dict.fromkeys(part.what for part in found.unreadable))
    _refuse_unreadable(found, guards)
    for text, verdict in verdicts:
        story.guarded.note(text.direction, verdict)
    _judge_calls(found, guards, story)
    _refuse(verdicts)
    changes = _changes(verdicts, guards, story, deps)
    now, later = parted(guards)
    if now or later:
        samples = [_sample(text, changes) for text in found.readable]
        if now:
            await _changed_by(now, samples, changes, story, deps)
            samples = [_sample(text, changes) for text in found.readable]
        blocking = [rule for rule in later if rule.mode in CHANGING]
        if blocking:
            story.guarded.judging = deps.loop.create_task(judged_by(blocking, samples, caller.tenant, deps.detectors))
        if len(blocking) < len(later):
            noting = [rule for rule in later if rule.mode not in CHANGING]
            story.guarded.noting = deps.loop.create_task(_noted(noting, samples, story, deps))
            deps.noting.add(story.guarded.noting)
            story.guarded.noting.add_done_callback(deps.noting.discard)
    if not changes:
        return ask
    if story.guarded.placeholders is not None:
        refuse_showing(ask)
    story.guarded.changed = True
    story.asked.prompt = story.asked.counted = None  # they were of the prompt as it came
    return with_texts(ask, found, changes)


async def join_guards(story: Story, placement: Placement | None = None) -> None:
    """Wait for the detectors that were asked while the request waited.

    Args:
        placement: is given back where the request is refused.

    Raises:
        Fault: as `guard_input`.
    """
    judging, story.guarded.judging = story.guarded.judging, None
    if judging is None:
        return
    try:
        judged = await judging
        for (_, direction, _), verdict in judged:
            story.guarded.note(direction, verdict)
        for (path, _, _), verdict in judged:
            if verdict.refused:
                raise refusal(path, verdict)
    except BaseException:
        judging.cancel()
        if placement is not None:
            placement.give_back()
        raise


async def hear_guards(story: Story) -> None:
    """Wait for all detectors that were asked, those of rules that flag or shadow too. Raises Fault: as `join_guards`."""
    if story.guarded.noting is not None:
        await asyncio.wait({story.guarded.noting})
    await join_guards(story)


def leave_guards(story: Story) -> None:
    """Stop asking detectors for a request that is over; what those find that nobody waits for is counted by itself from now on."""
    judging, story.guarded.judging = story.guarded.judging, None
    story.guarded.over = True
    if judging is not None:
        judging.cancel()


async def _noted(rules: Sequence[DetectorRule], samples: Sequence[Sample], story: Story, deps: Deps) -> None:
    """Note what rules that flag or shadow say of a request."""
    facts, caller = story.guarded, story.asked.caller
    assert caller is not None
    try:
        for (_, direction, _), verdict in await judged_by(rules, samples, caller.tenant, deps.detectors):
            if facts.over:
                deps.late_findings(caller.tenant, direction, verdict)
            else:
                facts.note(direction, verdict)
    except Exception as error:  # noqa: BLE001 - nobody waits for this task, so nobody else would tell of a defect
        deps.log_defect(error, story.gateway_id)


def _judged(
    body: bytes, guards: GuardSet, tenant: str, remembered: RememberedVerdicts
) -> tuple[RequestTexts, list[tuple[Readable, GuardVerdict]]]:
    """The texts of a request, and what the rules evaluated here say of each that any of them looks at."""
    found = texts(body)
    verdicts = []
    for text in found.readable:
        chain = guards.chain(text.direction, reasoning=text.beside)
        if chain.rules and text.text:
            version = f"{guards.version} beside" if text.beside else guards.version
            verdict = remembered.judge(chain, text.text, tenant=tenant, version=version, direction=text.direction)
            verdicts.append((text, verdict))
    return found, verdicts


def _judge_calls(found: RequestTexts, guards: GuardSet, story: Story) -> None:
    """Let the rules over calls of tools judge those of earlier turns. Raises Fault."""
    chain = guards.chain("tool_arguments")
    for call in found.calls if chain.calls else ():
        verdict = chain.judge_call(call.name, call.arguments)
        story.guarded.note("tool_arguments", verdict)
        if verdict.refused:
            raise refusal(call.path, verdict)


def _refuse_unreadable(found: RequestTexts, guards: GuardSet) -> None:
    """Refuse a prompt of token ids where a rule could refuse or change its text: it would be a way around the rule."""
    for part in found.unreadable:
        if part.what == "token ids" and any(rule.mode in CHANGING for rule in guards.on(("input",))):
            message = f"'{part.path}' is a prompt of token ids, which the guard rules of this policy cannot read. Send it as text."
            raise Fault(Kind.INVALID_VALUE, message, param=part.path)


def refuse_showing(ask: Ask) -> None:
    """Refuse what would carry text around rules that cut or change it. Raises Fault."""
    if SHOWING.isdisjoint(ask.names):
        return
    members = _decode(ask.fields)
    for name in sorted(SHOWING & ask.names):
        if bytes(members[name]) not in (b"false", b"null"):
            message = (
                f"The parameter '{name}' is not supported under the guard rules of this policy, which may change the text: leave it out."
            )
            raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=name)


def _refuse(verdicts: Sequence[tuple[Readable, GuardVerdict]]) -> None:
    for text, verdict in verdicts:
        if verdict.refused:
            raise refusal(text.path, verdict)


def refusal(path: str, verdict: GuardVerdict) -> Fault:
    """The fault of a text that may not pass."""
    if verdict.ended != "block":
        message = "The request could not be checked by a guard rule of its policy. Try again."
        return Fault(Kind.GUARD_UNAVAILABLE, message, param=path, retry=retry_after.SOON, detail=f"rule {verdict.by}")
    kind = next(found.kind for found in verdict.findings if found.rule == verdict.by and found.mode == "block")
    message = f"The guard rule '{verdict.by}' refuses '{path}': it contains {kind}. Remove it, and send the request again."
    return Fault(Kind.GUARD_BLOCKED, message, param=path, detail=f"rule {verdict.by}")


def _changes(verdicts: Sequence[tuple[Readable, GuardVerdict]], guards: GuardSet, story: Story, deps: Deps) -> dict[str, str]:
    """The texts that rules change, by path; placeholders for values that the answer shows again."""
    changes: dict[str, str] = {}
    placeholders = Placeholders(deps.unpredictable)
    for text, verdict in verdicts:
        if any(found.mode in CHANGING for found in verdict.findings):
            changes[text.path] = guards.chain(text.direction).changed(text.text, verdict.findings, placeholders.label)
    if len(placeholders):
        story.guarded.placeholders = placeholders
    return changes


def _sample(text: Readable, changes: Mapping[str, str]) -> Sample:
    return text.path, text.direction, changes.get(text.path, text.text)


async def _changed_by(rules: Sequence[DetectorRule], samples: Sequence[Sample], changes: dict[str, str], story: Story, deps: Deps) -> None:
    """Add the changes of rules whose detectors find what to change, one rule after the other. Raises Fault."""
    assert story.asked.caller is not None
    for rule in rules:
        current = [(path, direction, changes.get(path, text)) for path, direction, text in samples]
        for (path, direction, text), verdict in await judged_by((rule,), current, story.asked.caller.tenant, deps.detectors):
            story.guarded.note(direction, verdict)
            if verdict.refused:
                raise refusal(path, verdict)
            if verdict.findings and verdict.text != text:
                assert verdict.text is not None
                changes[path] = verdict.text
