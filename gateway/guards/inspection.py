"""Texts that guard rules judge for an operator: rules of a tenant, or rules that nobody uses yet. No model gets them, nothing is counted.

`WorkersGuards` is the client in the admin process, `answers` are a worker's handlers, because a worker has the policies in force and the
detectors. `judged_by_rules` judges by rules as somebody has written them, without a worker and so without detectors.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.deps import Deps
from gateway.http.openai.guard_texts import guard_question, render_verdicts
from gateway.process.worker_link import Answer, ask_newest
from gateway.request.guard_texts import call_verdicts, guards_for, verdicts_on
from guardrails.build import RuleUnusable
from guardrails.guard_set import GuardSet
from guardrails.policy import DetectorRule, GuardPolicy
from policies.guards import shared_set
from policies.guards_shown import guard_in_words
from policies.yaml.located import parse_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import validated

JUDGE_LINE: Final = b"judge\n"
"""Begins a question for verdicts; a `JudgeAsked` in MessagePack follows."""
WITHIN_S: Final = 10.0
"""Time limit for an answer: detectors are asked over the network."""
RULES: Final = "rules"
"""The name of rules as written, in the messages about them."""


class JudgeAsked(msgspec.Struct, frozen=True):
    """The question what the rules of a tenant say."""

    tenant: str
    project: str
    body: bytes
    """As a caller sends it to `POST /v1/guard`."""


class RuleApplied(msgspec.Struct, frozen=True):
    """A rule that has judged, or would have."""

    id: str
    kind: str
    mode: str
    on: tuple[str, ...]
    words: str
    """All of it in words."""
    asked: bool = True
    """Whether it has judged; a detector is not asked for rules as written."""


class TextJudged(msgspec.Struct, frozen=True):
    """The verdicts, or why there are none."""

    verdicts: bytes = b"null"
    """JSON, as `POST /v1/guard` answers."""
    rules: tuple[RuleApplied, ...] = ()
    refusal: str = ""
    """Why there are no verdicts; empty where there are."""
    param: str = ""
    """The field that is why."""


class JudgesTexts(Protocol):
    """Judges texts by the rules of a tenant."""

    async def judge(self, asked: JudgeAsked) -> TextJudged | None:
        """The verdicts; None when no worker answers."""
        ...


class WorkersGuards:
    """Asks the newest worker of this gateway."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def judge(self, asked: JudgeAsked) -> TextJudged | None:
        """The verdicts; None when no worker answers."""
        reply = await ask_newest(self._run_dir, JUDGE_LINE + msgspec.msgpack.encode(asked), WITHIN_S)
        with contextlib.suppress(msgspec.DecodeError):  # a worker of another version, while the gateway is replaced
            return msgspec.msgpack.decode(reply, type=TextJudged) if reply else None
        return None


def answers(deps_of: Callable[[], Deps | None]) -> dict[bytes, Answer]:
    """The handler of questions. It answers nothing while the worker has not loaded its policies (`deps_of` gives None)."""

    async def judge(question: bytes) -> bytes:
        deps = deps_of()
        asked = msgspec.msgpack.decode(question, type=JudgeAsked)
        return b"" if deps is None else msgspec.msgpack.encode(await judged_for(asked, deps))

    return {JUDGE_LINE: judge}


async def judged_for(asked: JudgeAsked, deps: Deps) -> TextJudged:
    """What the rules of a tenant's policy in force say, those with detectors too."""
    policy = deps.live.policies.for_tenant(asked.tenant)
    if policy is None:
        return TextJudged(refusal=f"There is no policy for the tenant {ascii(asked.tenant)[:66]}.", param="tenant")
    try:
        question = guard_question(asked.body)
        model = policy.models.get(question.model) if question.model else None
        if question.model and model is None:
            message = f"The policy has no model {ascii(question.model)[:66]}. Leave it out for the rules of every model."
            return TextJudged(refusal=message, param="model")
        caller = Caller(TenantId(asked.tenant), ProjectId(asked.project), KeyId(""))
        guards = guards_for(policy, caller, model.name if model is not None else "", question.guards)
        verdicts = await verdicts_on(question.texts, guards, asked.tenant, deps)
    except Fault as fault:
        return TextJudged(refusal=str(fault), param=fault.param or "")
    calls = [] if guards is None else call_verdicts(question.calls, guards)
    version = "" if guards is None else guards.version
    return TextJudged(render_verdicts(question, verdicts, version, "", calls), _applied(guards))


def judged_by_rules(written: str, body: bytes) -> TextJudged:
    """What rules say that are written as for `tidegate guard test --rules`. Takes processor time in proportion to the text, so it is called
    in a thread.

    Args:
        written: YAML, `rules: [{id, kind, mode, …}]`.
        body: as a caller sends it to `POST /v1/guard`.
    """
    try:
        policy = validated(GuardPolicy, parse_yaml(written.encode(), RULES, None))
        guards = shared_set(policy.rules, policy.held_bytes)
        question = guard_question(body)
    except ConfigError as error:
        more = f" ({len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        return TextJudged(refusal=f"{error.problems[0]}{more}", param=RULES)
    except RuleUnusable as error:
        return TextJudged(refusal=f"rule {error.rule}: {error}", param=RULES)
    except Fault as fault:
        return TextJudged(refusal=str(fault), param=fault.param or "")
    verdicts = [guards.chain(text.direction, reasoning=text.beside).judge(text.text) for text in question.texts]
    rendered = render_verdicts(question, verdicts, guards.version, "", call_verdicts(question.calls, guards))
    return TextJudged(rendered, _applied(guards, detectors=False))


def _applied(guards: GuardSet | None, *, detectors: bool = True) -> tuple[RuleApplied, ...]:
    rules = () if guards is None else guards.rules
    return tuple(
        RuleApplied(rule.id, rule.kind, rule.mode, tuple(rule.on), guard_in_words(rule), detectors or not isinstance(rule, DetectorRule))
        for rule in rules
    )
