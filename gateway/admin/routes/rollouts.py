"""Rollouts and experiments: start, show, and the operator's decisions. Decisions that follow from counts are left to
`gateway.rollouts.keeper`."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import structlog
from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, Field
from starlette.responses import Response

from domain.model_revisions import RevisionMissing
from domain.rollouts import RolloutBook, StoredRollout
from domain.strict import Strict
from gateway.admin.call import AdminCall, Done, Entropy, Transactions, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, PageQuery, Posting, decode_cursor, errors, page_of, printable
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem, etag_of, not_found
from gateway.rollouts.aborts import ACTION, PendingAbort, RolloutAborts
from gateway.rollouts.keeper import message
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import NotNow, RolloutState, Status, abort, begin, close, pause, promote, resume
from policies.rollout.samples import METRICS, Worse
from policies.rollout.state import CLOSED, Read, RolloutStatus, UnreadableRollout, brief, read, standing, state_text
from tenancy.journal import JournalAway
from tenancy.rights import Role

audit = structlog.get_logger("tidegate.audit", audit=True)

router = APIRouter(route_class=GuardedRoute, tags=["Rollouts"])

ID_BYTES: Final = 12
MAX_USES: Final = 5
"""Uses of the baseline that a refusal names; the others are counted."""
WRITES: Final = 5
"""How often a decision is tried when the keeper writes counts at the same time."""

Place = tuple[Annotated[float, msgspec.Meta(ge=0, le=1e12)], Annotated[str, msgspec.Meta(pattern="^ro_[0-9a-f]{24}$")]]
"""The position where a page of closed rollouts ended: the time of the rollout's last change, and its id."""

RolloutName = Annotated[
    str,
    Path(
        max_length=63,
        description="Name of the rollout, of several with this name the active one, else the last started; or the rollout's id.",
    ),
]


class FindingShown(BaseModel):
    """The result of comparing one metric."""

    metric: str
    judgement: str = Field(description="`worse`, `undecided` or `good enough`.")
    requests: int = Field(description="Samples of the canary.")
    canary: float = Field(description="The canary's value: a share, or a geometric mean in seconds, tokens or nano-dollars.")
    baseline: float
    low: float = Field(
        description="Lower end of the confidence interval of the difference: absolute for a share, else as part of the baseline's value."
    )
    high: float | None = Field(description="Upper end of that interval; null while it is too early to say.")
    words: str
    margin: float = Field(description="The greatest difference that is tolerated, in the same terms as `low` and `high`.")
    either: bool = Field(description="Whether a difference in either direction is worse; else only an increase is.")
    scale: str = Field(description="`share`, compared by difference, or `ratio`, compared as part of the baseline's value.")


class RolloutListed(BaseModel):
    """One rollout, now."""

    id: str
    name: str
    baseline: str
    canary: str
    experiment: bool
    open: bool = Field(description="Whether the rollout is active.")
    status: str = Field(description="`running`, `paused`, `at gate`, `held`, `done`, `rolled back` or `closed`.")
    phase: str
    phase_index: int
    phases: int
    share: float = Field(description="Share of the conversations that the canary answers, 0 to 1.")
    mirrored: float = Field(description="Share of the requests that are mirrored to the canary.")
    entered_unix: float = Field(description="When this phase began.")
    spent_s: float = Field(description="Running time of this phase.")
    max_s: float
    counted: int = Field(description="Requests of the canary that were counted in this phase.")
    min_requests: int
    counted_in_all: int
    judgement: str
    reason: str = Field(description="Reason of the last change, in words.")
    findings: list[FindingShown]
    created_unix: float
    changed_unix: float


class RolloutShown(RolloutListed):
    """One rollout with what was asked for."""

    document: dict[str, object]


class RolloutPage(BaseModel):
    """Active rollouts by name, or closed rollouts, newest first. Rollouts that a newer version started are left out."""

    items: list[RolloutListed]
    next_cursor: str | None


class RolloutQuery(PageQuery):
    """The rollouts to show."""

    # not strict: values of a query string are text
    closed: Annotated[bool, Field(strict=False)] = Field(default=False, description="Closed rollouts instead of the active ones.")


class AbortPending(BaseModel):
    """A rollout that only this gateway has sent back, because the database is away."""

    id: str
    name: str
    baseline: str
    canary: str
    reason: str
    pending: bool = Field(description="True: the decision is written when the database is there again.")


class Abortion(Strict):
    """Why a rollout ends."""

    reason: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(printable)] = Field(
        description="The reason, for readers of the history."
    )


@router.get("/rollouts", response_model=RolloutPage, responses=READ_ERRORS, summary="List rollouts")
async def list_all(call: Asking, query: Annotated[RolloutQuery, Query()]) -> Response:
    """Show rollouts and experiments."""
    now = call.parts.wall()
    before = decode_cursor(query.cursor, Place)
    async with call.parts.rollouts() as book:
        if query.closed:
            records = await book.closed(before, query.limit + 1)
            page = page_of(records, query.limit, lambda stored: stored, lambda stored: (stored.changed_unix, stored.id))
        else:
            page = {"items": await book.in_force(), "next_cursor": None}
    return answer(200, {**page, "items": [_listed(stored, now) for stored in page["items"] if _readable(stored)]})


@router.post("/rollouts", status_code=201, response_model=RolloutShown, responses=POST_ERRORS, summary="Start a rollout or an experiment")
async def start(call: Posting, document: RolloutDocument) -> Response:
    """Put a rollout in force: within a second workers give the canary its first share."""
    if document.of == "pool":
        async with call.parts.registered_adapters() as store:
            registered = await store.load()
        adapters = {pool: {*names, *(one.name for one in registered if one.pool == pool)} for pool, names in call.parts.pools.items()}
        _check_pools(document, adapters)
        await _check_revisions(call, document)
    else:
        _check_prompts(document, await asyncio.to_thread(call.parts.prompts))
    now = call.parts.wall()
    standings: list[RolloutStatus] = []

    async def work(books: Transactions, entropy: Entropy) -> Done:
        rollout_id = f"ro_{entropy[:ID_BYTES].hex()}"
        state = begin(document.plan(rollout_id), now)
        stored = StoredRollout(rollout_id, document.name, text_of(document), state_text(state), 1, True, now, now)
        await books.rollouts.start(stored, document.baseline, document.canary)
        stands = standing(stored, read(stored), now)
        standings.append(stands)
        shown = _shown(stored, now)
        return Done(201, "rollout.start", f"rollout/{document.name}", shown, after={"id": rollout_id, "document": shown["document"]})

    reply = await call.change(work)
    _announce(call, "rollout.start", standings)
    return reply


@router.get("/rollouts/{rollout}", response_model=RolloutShown, responses=READ_ERRORS | errors(409), summary="How a rollout stands")
async def get(call: Asking, rollout: RolloutName) -> Response:
    """Show one rollout: where it is, what was counted, what is found of each metric."""
    async with call.parts.rollouts() as book:
        stored = await _get_readable(book, rollout)
    shown = _shown(stored, call.parts.wall())
    return answer(200, shown, etag_of(shown))


@router.post("/rollouts/{rollout}/pause", response_model=RolloutShown, responses=POST_ERRORS, summary="Pause a rollout")
async def pause_it(call: Posting, rollout: RolloutName) -> Response:
    """Keep its share and stop its time. It is still compared: a canary that is worse goes back."""
    return await _decide(call, rollout, "rollout.pause", lambda current, now: pause(current.state, now))


@router.post("/rollouts/{rollout}/resume", response_model=RolloutShown, responses=POST_ERRORS, summary="Resume a paused rollout")
async def resume_it(call: Posting, rollout: RolloutName) -> Response:
    """Let its time go on."""
    return await _decide(call, rollout, "rollout.resume", lambda current, now: resume(current.state, now))


@router.post("/rollouts/{rollout}/promote", response_model=RolloutShown, responses=POST_ERRORS, summary="Go on to the next phase")
async def promote_it(call: Posting, rollout: RolloutName) -> Response:
    """Go on past a gate, out of a hold or a pause, or before its time, whatever the phase still lacks."""
    return await _decide(call, rollout, "rollout.promote", lambda current, now: promote(current.plan, current.state, now).state)


@router.post(
    "/rollouts/{rollout}/abort",
    response_model=RolloutShown,
    responses=POST_ERRORS | {202: {"model": AbortPending, "description": "The database is away: this gateway alone sends it back so far."}},
    summary="Back to the baseline, also without the database",
)
async def abort_it(call: Posting, rollout: RolloutName, body: Abortion) -> Response:
    """End it: within a second new requests go to the baseline; what runs on the canary ends there. While the database is away this gateway
    does so alone, and writes the decision down when the database is there again (202, `pending`); other gateways have to be told one by one
    until then."""
    why = body.reason
    try:
        return await _decide(call, rollout, ACTION, lambda current, now: abort(current.plan, current.state, now, why).state, ends=True)
    except JournalAway:
        if call.parts.aborts is None:
            raise
        return await _abort_pending(call, call.parts.aborts, rollout, why)


async def _abort_pending(call: AdminCall, aborts: RolloutAborts, name: str, why: str) -> Response:
    """Send the rollout back on this gateway, and keep the decision until the database takes it."""
    known = aborts.known(name)
    if known is None:
        message = f"The database is away, and this gateway has read no rollout {name!r} from it that is in force; nothing was changed."
        raise AdminProblem(503, "store_unavailable", message, headers=RETRY)
    if known.status == Status.DONE.value:
        raise NotNow(f"a rollout that is {known.status} cannot be aborted")
    role = next(role for role in Role if role in call.roles)
    entry = PendingAbort(known.id, name, why, call.parts.wall(), call.principal.actor, role.value, call.address[:64])
    try:
        await aborts.order(entry)
    except OSError as error:
        message = f"The database is away, and the decision cannot be kept on this gateway: {error}. Try again."
        raise AdminProblem(503, "store_unavailable", message, headers=RETRY) from None
    audit.warning(ACTION, actor=entry.actor, address=entry.address, target=f"rollout/{name}", pending=True)
    return answer(202, {"id": known.id, "name": name, "baseline": known.baseline, "canary": known.canary, "reason": why, "pending": True})


@router.post("/rollouts/{rollout}/close", response_model=RolloutShown, responses=POST_ERRORS, summary="Close a finished rollout")
async def close_it(
    call: Posting,
    rollout: RolloutName,
    back: Annotated[bool, Query(description="Close although policies still lead to the baseline: its traffic goes back to it.")] = False,
) -> Response:
    """End one that is done, or an experiment that came to its end. Afterwards requests go where policies say, so one that is done is not
    closed (409) while policies lead to the baseline."""
    if not back:
        await _check_policies(call, rollout)
    return await _decide(call, rollout, "rollout.close", lambda current, now: close(current.plan, current.state), ends=True)


async def _decide(call: AdminCall, name: str, action: str, event: Callable[[Read, float], RolloutState], *, ends: bool = False) -> Response:
    """Apply one decision to the open rollout of this name, as one change."""
    now = call.parts.wall()
    standings: list[RolloutStatus] = []

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        for _ in range(WRITES):  # the keeper writes counts without waiting for changes
            stored = await _get_readable(books.rollouts, name)
            current = read(stored)
            before = standing(stored, current, now)
            if not stored.open:
                raise NotNow(_over(before.status, action))
            state = event(current, now)
            new = msgspec.structs.replace(stored, state=state_text(state), open=not ends, changed_unix=now)
            if await books.rollouts.write(new):
                standings.append(standing(new, read(new), now))
                return Done(200, action, f"rollout/{name}", _shown(new, now), before=brief(before), after=brief(standings[-1]))
        raise AdminProblem(409, "changed", "It changes faster than this can be written. Try again.")

    reply = await call.change(work)
    _announce(call, action, standings)
    return reply


def _over(status: str, action: str) -> str:
    """Why a decision about a rollout that is over is refused."""
    if action == "rollout.close":
        return f"the rollout is {status}{'' if status == CLOSED else ', which ended it'}; there is nothing left to close"
    return f"the rollout is {status}; start another"


async def _check_policies(call: AdminCall, name: str) -> None:
    """Raises Problem when closing the rollout would send the traffic of a canary that has all of it back to the baseline."""
    async with call.parts.rollouts() as book:
        stored = await _get_readable(book, name)
    current = read(stored)
    if not stored.open or current.state.status is not Status.DONE:
        return  # no traffic would move by surprise; `close` says whether it can be closed
    uses = await call.parts.reloading.uses_of_baseline(stored.document)
    if uses is None:
        message = "No worker says whether the policies still lead to the baseline. Try again, or close it with back=true."
        raise AdminProblem(503, "no_worker", message, headers=RETRY)
    if uses:
        document = current.document
        listed = "; ".join(uses[:MAX_USES]) + (f"; and {len(uses) - MAX_USES} more" if len(uses) > MAX_USES else "")
        message = (
            f"Policies still lead to {document.baseline!r} ({listed}), so closing would send all of the canary's traffic back to it. "
            f"Change them to {document.canary!r} first; to go back on purpose, close with back=true (tidegate rollout close {name} --back)."
        )
        raise AdminProblem(409, "policies_lead_to_baseline", message)


def _announce(call: AdminCall, action: str, standings: Sequence[RolloutStatus]) -> None:
    """Announce what was done; the list is empty for a repeated request, which did nothing."""
    for stands in standings:
        call.parts.announce(message(action, stands))


async def _get_readable(book: RolloutBook, name: str) -> StoredRollout:
    stored = await book.find(name)
    if stored is None:
        raise not_found()
    if not _readable(stored):
        raise AdminProblem(409, "unreadable", "A newer version of Tidegate started it; this one cannot read it.")
    return stored


def _readable(stored: StoredRollout) -> bool:
    try:
        read(stored)
    except UnreadableRollout:
        return False
    return True


def _listed(stored: StoredRollout, now: float) -> dict[str, Any]:
    decoded = read(stored)
    stands = standing(stored, decoded, now)
    findings = []
    for found in stands.findings:
        metric = METRICS[found.metric]
        terms = {"margin": decoded.plan.terms.margins[found.metric], "either": metric.worse is Worse.EITHER, "scale": metric.scale.value}
        findings.append({**msgspec.structs.asdict(found), **terms})
    return {**msgspec.structs.asdict(stands), "findings": findings}


def _shown(stored: StoredRollout, now: float) -> dict[str, Any]:
    return {**_listed(stored, now), "document": msgspec.json.decode(stored.document)}


def _check_prompts(document: RolloutDocument, existing: Collection[str]) -> None:
    """Raises Problem unless both versions of the prompt exist."""
    for param in ("baseline", "canary"):
        if (name := getattr(document, param)) not in existing:
            versions = (
                ", ".join(sorted(version for version in existing if version.partition("@")[0] == name.partition("@")[0])[:20])
                or "none of it"
            )
            raise AdminProblem(400, "unknown_prompt", f"{param}: there is no prompt {name!r} here; there are: {versions}.", param)


async def _check_revisions(call: AdminCall, document: RolloutDocument) -> None:
    """Refuses pools that are pinned to a revision that the registry lacks or knows with another digest, and a canary of a retired one."""
    for reference, pools in call.parts.pinned.items():
        used = [name for name in (document.baseline, document.canary) if name in pools]
        if not used:
            continue
        model, _, revision = reference.rpartition("@")
        async with call.parts.models() as store:
            try:
                found = await store.get(model, revision)
            except RevisionMissing:
                missing = f"pool {used[0]} is pinned to {reference}, which the registry of models lacks; register it first."
                raise AdminProblem(400, "unknown_revision", missing, "baseline" if used[0] == document.baseline else "canary") from None
        if unlike := [name for name in used if pools[name] != found.digest]:
            param = "baseline" if unlike[0] == document.baseline else "canary"
            differs = (
                f"pool {unlike[0]} is pinned to {reference} with {pools[unlike[0]]}, and the registry of models has {found.digest}; "
                "correct the digest in the settings, or pin the pool to another revision."
            )
            raise AdminProblem(409, "digest_differs", differs, param)
        if document.canary in pools and found.retired_unix is not None:
            retired = f"pool {document.canary} is pinned to {reference}, which is retired; pin it to another revision."
            raise AdminProblem(409, "retired", retired, "canary")


def _check_pools(document: RolloutDocument, pools: Mapping[str, Collection[str]]) -> None:
    """Raises Problem unless both pools exist and the canary has every adapter of the baseline."""
    for param in ("baseline", "canary"):
        if (name := getattr(document, param)) not in pools:
            listed = ", ".join(sorted(pools)[:20])
            raise AdminProblem(400, "unknown_pool", f"{param}: there is no pool {name!r} in the settings; there are: {listed}.", param)
    if missing := sorted(set(pools[document.baseline]) - set(pools[document.canary])):
        message = f"canary: pool {document.canary!r} lacks adapter {missing[0]!r}, which pool {document.baseline!r} has; add it there."
        raise AdminProblem(400, "unknown_adapter", message, "canary")
