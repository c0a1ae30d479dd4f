"""Guard rules: what they said of requests, the last blocks, what rules on trial found in requests, and texts judged on trial."""

import asyncio
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, get_args

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import AdminCall, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, Name, PageQuery, Posting, decode_cursor, encode_cursor, page_of
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem
from gateway.guards.inspection import JudgeAsked, TextJudged, judged_by_rules
from gateway.http.openai.controls import GUARDS
from gateway.process.snapshots import WorkerSnapshot
from gateway.request_log.collector import entry_of
from gateway.request_log.reader import RequestLog
from gateway.telemetry.families import GUARD_FAILURES, GUARD_FINDINGS, GUARD_VERDICTS, GUARD_WORDS, Family
from guardrails.policy import Direction
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.audit import AuditRow
from tenancy.guard_blocks import BLOCK, FURTHER
from tenancy.request_log import Cursor, LoggedRequest, RequestFilter

router = APIRouter(route_class=GuardedRoute, tags=["Guards"])

MAX_RULES_CHARS = 256 * 1024
MAX_ASKED = 64
GUARD_ACTIONS = "guard"
"""How the actions of the audit begin that guard rules cause."""
LOOKED_THROUGH: Final = 2000
"""Requests of the log that one page of `/guards/shadow` looks through; their lines are about 3 MB, and are read in parts."""
PART: Final = 500
SHADOW: Final = b":shadow:"
"""Stands in the line of every request in which a rule on trial found something, and in few other ones."""
FOUND: Final = re.compile(rf"([a-z0-9_-]+):(.*?):(block|redact|replace|flag|shadow):({'|'.join(get_args(Direction))})=(\d+)(?:, |$)")
"""One finding of `guard_found` in the access log, as `GuardRecord.found` writes it: rule, kind, mode, direction and number."""


class TenantVerdictsShown(BaseModel):
    """What guard rules said of one tenant's requests since the workers started, in one word each."""

    tenant: str = Field(description="`_other` stands for tenants beyond the bound on labels of metrics.")
    passed: int
    flagged: int
    changed: int
    block: int
    unavailable: int = Field(description="Refused, because a rule that fails closed could not judge.")
    too_long: int


class RuleFindingsShown(BaseModel):
    """What one rule found in the texts of one direction."""

    tenant: str
    rule: str
    mode: str = Field(description="With `shadow`, the rule is on trial: what it found has had no effect.")
    direction: str
    findings: int


class RuleFailuresShown(BaseModel):
    """Requests and answers that a rule could not judge."""

    tenant: str
    rule: str
    failures: int


class GuardsShown(BaseModel):
    """What guard rules said since the workers started."""

    tenants: list[TenantVerdictsShown]
    rules: list[RuleFindingsShown]
    failures: list[RuleFailuresShown]


class GuardEventShown(BaseModel):
    """A request that a guard rule refused or whose answer it cut, without any text of it; or a count of further ones."""

    seq: int
    at_unix_ms: int
    tenant: str
    key: str = Field(description="The API key, as `key ID@TENANT`; empty for a count.")
    request_id: str
    model: str
    answered_by: str = Field(description="The model that answered in place of the refused one; empty for none.")
    rule: str
    kinds: list[str]
    direction: str
    late: bool = Field(description="Whether the answer was cut after the refused text had been sent.")
    version: str = Field(description="Of the rules.")
    further: int = Field(description="Of a count: blocks of the tenant in one minute that have no event of their own; else 0.")


class GuardEventsPage(BaseModel):
    """Events, newest first."""

    items: list[GuardEventShown]
    next_cursor: str | None


class GuardEventsQuery(PageQuery):
    """The events to show."""

    tenant: str | None = Field(default=None, max_length=63, description="Only events of this tenant.")


class ShadowFindingShown(BaseModel):
    """What one rule on trial found of one kind in one request or its answer."""

    rule: str
    kind: str
    direction: str
    count: int


class ShadowRequestShown(BaseModel):
    """A request in which rules on trial found something: enforced, they would have refused, changed or flagged it."""

    request_id: str
    at_unix: float
    tenant: str
    project: str
    model: str
    outcome: str
    guard: str = Field(description="What the rules in force said, in one word.")
    findings: list[ShadowFindingShown]


class ShadowPage(BaseModel):
    """Requests that rules on trial differ about, newest first."""

    items: list[ShadowRequestShown]
    next_cursor: str | None = Field(description="Goes on where this page ended to look; null at the end of the log.")
    looked_through: int = Field(description="Requests of the log that this page looked through, up to 2,000.")


class ShadowQuery(PageQuery):
    """The requests to look for."""

    tenant: str | None = Field(default=None, max_length=63, description="Only requests of this tenant.")
    rule: str = Field(default="", max_length=64, description="Only findings of this rule; empty for every rule.")


class TrialText(Strict):
    """A text, and the rules that judge it: those of a tenant, or those that are written here."""

    tenant: Name | None = Field(default=None, description="The tenant whose policy has the rules; this or `rules`.")
    project: Name = Field(default=DEFAULT_PROJECT, description="With `tenant`: the tenant's project.")
    model: str = Field(default="", max_length=256, description="With `tenant`: the model; left out, the rules of every model judge.")
    guards: list[str] = Field(default=[], max_length=MAX_ASKED, description="With `tenant`: rules that a request would ask for, by id.")
    rules: str | None = Field(
        default=None,
        max_length=MAX_RULES_CHARS,
        description="Rules as YAML, `rules: [{id, kind, mode, …}]`. Rules that ask a detector do not judge.",
    )
    direction: Direction | None = Field(default=None, description="What the text is; left out, `input`.")
    input: str | list[str] | dict[str, Any] = Field(description="A text, a list of texts, or the body of a request.")


class RuleAppliedShown(BaseModel):
    """A rule that applies."""

    id: str
    kind: str
    mode: str
    on: list[str]
    words: str = Field(description="All of the rule in words.")
    asked: bool = Field(description="Whether it has judged. Rules as written ask no detector.")


class GuardFindingShown(BaseModel):
    """A finding, at its place in the text."""

    rule: str
    kind: str
    mode: str
    begin: int
    end: int


class TextVerdictShown(BaseModel):
    """The verdict on one text or on one call of a tool."""

    path: str
    direction: str
    action: str = Field(description="`pass`, `flag`, `change` or `block`.")
    text: str | None = Field(description="The text as it would be passed on; null where it would be refused, and for calls.")
    by: str | None
    failed: list[str]
    count: int
    findings: list[GuardFindingShown]


class VerdictsShown(BaseModel):
    """The verdicts, as `POST /v1/guard` gives them."""

    model: str | None
    version: str = Field(description="The digest of the rules; empty where there are none.")
    action: str = Field(description="The severest action of all texts.")
    results: list[TextVerdictShown]
    unread: list[str] = Field(description="Parts of a request that no rule can read.")


class TrialShown(BaseModel):
    """What the rules say."""

    verdicts: VerdictsShown
    rules: list[RuleAppliedShown] = Field(description="The rules that apply, in their order.")


@router.get("/guards", response_model=GuardsShown, responses=READ_ERRORS, summary="What guard rules said of requests")
async def show(call: Asking) -> Response:
    """Show the verdicts on each tenant's requests, and the findings and failures of each rule, since the workers started."""
    gateway = call.parts.gateway
    workers = await gateway.workers() if gateway is not None else []
    verdicts, findings, failures = (_sums(workers, family, call) for family in (GUARD_VERDICTS, GUARD_FINDINGS, GUARD_FAILURES))
    shown = GuardsShown(
        tenants=[
            TenantVerdictsShown(tenant=tenant, **dict(zip(GUARD_WORDS, map(int, cell), strict=True)))
            for (tenant,), cell in sorted(verdicts.items())
        ],
        rules=[
            RuleFindingsShown(tenant=tenant, rule=rule, mode=mode, direction=direction, findings=int(cell[0]))
            for (tenant, rule, mode, direction), cell in sorted(findings.items())
        ],
        failures=[RuleFailuresShown(tenant=tenant, rule=rule, failures=int(cell[0])) for (tenant, rule), cell in sorted(failures.items())],
    )
    return answer(200, shown.model_dump())


@router.get("/guards/events", response_model=GuardEventsPage, responses=READ_ERRORS, summary="The last blocks, newest first")
async def events(call: Asking, query: Annotated[GuardEventsQuery, Query()]) -> Response:
    """Show requests that guard rules refused, and answers that they cut, by rule and kind and without any text. The audit has the same
    rows: it bounds them, and counts what is beyond the bound."""
    tenant = query.tenant if call.tenant is None else call.own(query.tenant or call.tenant)
    before = decode_cursor(query.cursor, int)
    rows = await call.parts.audit.newest(before, query.limit + 1, tenant, GUARD_ACTIONS)
    return answer(200, page_of(rows, query.limit, _event, lambda row: row.seq))


@router.get("/guards/shadow", response_model=ShadowPage, responses=READ_ERRORS, summary="Requests that rules on trial differ about")
async def shadow(call: Asking, query: Annotated[ShadowQuery, Query()]) -> Response:
    """Show the requests of the log in which a rule in shadow mode found something, without any text. One page looks through 2,000 requests
    at most, so it may be empty and still have a next one."""
    log = call.parts.requests
    if log is None:
        raise AdminProblem(503, "store_unavailable", "This gateway keeps no request log.")
    tenant = query.tenant or "" if call.tenant is None else call.own(query.tenant or call.tenant)
    items: list[dict[str, Any]] = []
    looked, after = 0, decode_cursor(query.cursor, Cursor)
    more = True
    while more and looked < LOOKED_THROUGH and len(items) < query.limit:
        part = await _part(log, tenant, after)
        more = len(part) == PART
        for request in part:
            looked, after = looked + 1, request.place
            shown = _differs(request, query.rule) if SHADOW in request.line else None
            if shown is not None:
                items.append(shown)
                if len(items) == query.limit:
                    more = more or request is not part[-1]
                    break
    return answer(200, {"items": items, "next_cursor": encode_cursor(after) if more else None, "looked_through": looked})


@router.post("/guards/test", response_model=TrialShown, responses=POST_ERRORS, summary="Judge a text on trial")
async def test(call: Posting, wanted: TrialText) -> Response:
    """Say what the rules of a tenant's policy, or rules as they are written here, would do to a text. Nothing is sent to a model, kept or
    counted; the rules of a tenant ask their detectors. A tenant-admin tries the rules of the own tenant's policy."""
    if (wanted.tenant is None) is (wanted.rules is None):
        raise AdminProblem(400, "invalid_value", "Write 'tenant' or 'rules', and not both.", "tenant")
    texts = {"input": wanted.input, "direction": wanted.direction}
    if wanted.rules is not None:
        if call.tenant is not None:
            raise AdminProblem(403, "forbidden", "A tenant-admin tries the rules of the tenant's policy: name it in 'tenant'.", "rules")
        if wanted.model or wanted.guards:
            raise AdminProblem(400, "invalid_value", "Leave 'model' and 'guards' out: rules as written all judge.", "rules")
        judged = await asyncio.to_thread(judged_by_rules, wanted.rules, msgspec.json.encode(texts))
    else:
        judged = await _by_tenant(call, wanted, {**texts, "model": wanted.model or None, GUARDS: wanted.guards or None})
    if judged.refusal:
        raise AdminProblem(400, "invalid_value", judged.refusal, "guards" if judged.param == GUARDS else judged.param or None)
    return answer(200, {"verdicts": msgspec.Raw(judged.verdicts), "rules": msgspec.to_builtins(judged.rules)})


async def _by_tenant(call: AdminCall, wanted: TrialText, question: dict[str, Any]) -> TextJudged:
    tenant = call.own(wanted.tenant or "")
    async with call.parts.reading() as directory:
        await directory.tenants.get(call.tenant, tenant)
    judging = call.parts.guards
    judged = None
    if judging is not None:
        judged = await judging.judge(JudgeAsked(tenant, wanted.project, msgspec.json.encode(question)))
    if judged is None:
        raise AdminProblem(503, "no_worker", "No worker can judge the text: none is ready, or it took too long. Try again.", headers=RETRY)
    return judged


def _event(row: AuditRow) -> dict[str, Any]:
    entry = row.entry
    after = msgspec.json.decode(entry.after or "{}", type=dict[str, Any])
    return GuardEventShown(
        seq=row.seq,
        at_unix_ms=row.at_unix_ms,
        tenant=entry.tenant,
        key=entry.actor if entry.action == BLOCK else "",
        request_id=after.get("request_id", ""),
        model=after.get("model", ""),
        answered_by=after.get("answered_by", ""),
        rule=after.get("rule", ""),
        kinds=after.get("kinds", []),
        direction=after.get("direction", ""),
        late=after.get("late", False),
        version=after.get("version", ""),
        further=after.get("blocks", 0) if entry.action == FURTHER else 0,
    ).model_dump()


async def _part(log: RequestLog, tenant: str, after: Cursor | None) -> list[LoggedRequest]:
    return await log.page(RequestFilter(tenant=tenant), "newest", after, PART)


def _differs(request: LoggedRequest, rule: str) -> dict[str, Any] | None:
    """The request with what rules on trial found in it; None where they found nothing."""
    entry = entry_of(request)
    found = [match.groups() for match in FOUND.finditer(entry.guard_found)]
    findings = [
        ShadowFindingShown(rule=name, kind=kind, direction=direction, count=int(count))
        for name, kind, mode, direction, count in found
        if mode == "shadow" and rule in ("", name)
    ]
    if not findings:
        return None
    same = {name: getattr(entry, name) for name in ("tenant", "project", "model", "outcome", "guard")}
    return ShadowRequestShown(request_id=request.id, at_unix=request.at_us / 1e6, **same, findings=findings).model_dump()


def _sums(workers: Iterable[WorkerSnapshot], family: Family, call: AdminCall) -> dict[tuple[str, ...], list[float]]:
    """The cells of a family that the caller may see, over all workers."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for worker in workers:
        for labels, cell in worker.metrics.families.get(family.name, ()) if worker.metrics is not None else ():
            if call.tenant is None or labels[0] == call.tenant:
                into = sums.setdefault(tuple(labels), [0.0] * len(cell))
                for at, value in enumerate(cell):
                    into[at] += value
    return sums
