"""Policies: a reload of the folder, and, where the database owns them, their versions: list, show, apply, roll back."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, Field
from starlette.responses import Response

from domain.policy_versions import MAX_NOTE_CHARS, PolicyVersion, PolicyVersions
from domain.strict import Strict
from gateway.admin.call import AdminCall, DatabasePolicies, Done, Entropy, PolicyFiles, Transactions, answer
from gateway.admin.describe import POST_ERRORS, Asking, PageQuery, Posting, decode_cursor, errors, page_of, printable
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import CHANGED, AdminProblem, not_found
from policies.shown import differences
from policies.yaml.problems import MAX_SHOWN, MAX_TEXT_CHARS, ConfigError, listing

router = APIRouter(route_class=GuardedRoute, tags=["Policies"])

Number = Annotated[int, Path(ge=1, le=2**62)]
Note = Annotated[str, AfterValidator(printable)]
MAX_SHOWN_CHARS: Final = 2 * 1024 * 1024
MAX_CHANGES: Final = 500
STORED_ERRORS: Final = errors(400, 401, 403, 404, 409, 422, 503)


class PoliciesShown(BaseModel):
    """The policies of every worker, which agree."""

    digest: str = Field(description="Digest of the active policies; requests carry it in the access log.")
    workers: int = Field(description="Number of workers that answered.")
    warnings: list[str] = Field(description="What is active and hardly meant, with file and line.")


class ActivePolicies(BaseModel):
    """The policies that workers have now, and the files that they read."""

    source: str = Field(description="Who owns them: `files`, or `database`.")
    folder: str = Field(description="The folder that workers read, on the gateway's machine.")
    version: int | None = Field(description="The newest version of the database; null where files own the policies.")
    digests: dict[str, int] = Field(description="Number of workers by the digest of their active policies; one digest when they agree.")
    loaded_unix: float | None = Field(description="When the last worker read them; null when none answers.")
    problems: list[str] = Field(description="Why the files as they are now are refused, while the policies before stay active.")
    problem_count: int
    warnings: list[str] = Field(description="What is active and hardly meant, with file and line.")
    files: dict[str, str] = Field(description="The text of each file, by file name, as far as `left_out` says.")
    left_out: int = Field(description="Files that are not shown, because all of them together are over 2 MiB.")
    unreadable: str = Field(description="Why the folder cannot be read; empty when it can.")


class CheckedPolicies(Strict):
    """A whole set of policy files, to be checked."""

    files: dict[str, str] = Field(min_length=1, max_length=10_000, description="The text of each file, by file name: `acme.yaml`.")


class PoliciesChecked(BaseModel):
    """What the files would do; nothing was changed."""

    ok: bool = Field(description="Whether they could be active.")
    digest: str = Field(description="Their digest; empty when they have mistakes.")
    problems: list[str] = Field(description="Every mistake with file, line, key and what to write, at most 100.")
    problem_count: int
    warnings: list[str] = Field(description="What would be active and is hardly meant, with file and line.")
    changes: list[str] = Field(description="What changes for whom against the files that workers read now, at most 500 lines.")
    change_count: int


class VersionShown(BaseModel):
    """One version of the policies that the database keeps."""

    version: int
    digest: str = Field(description="Digest of the policies that the files define; requests carry the active one in the access log.")
    author: str = Field(description="The author of the change, as named in the audit.")
    note: str
    at_unix: float
    file_count: int


class WholeVersion(VersionShown):
    """One version of the policies, with its files."""

    files: dict[str, str] = Field(description="The text of each file, by file name.")


class VersionPage(BaseModel):
    """Versions, newest first."""

    items: list[VersionShown]
    next_cursor: str | None


class NewPolicies(Strict):
    """A whole set of policy files; what is not in it is no longer there."""

    files: dict[str, str] = Field(min_length=1, max_length=10_000, description="The text of each file, by file name: `acme.yaml`.")
    note: Note = Field(default="", max_length=MAX_NOTE_CHARS, description="The reason of the change, for readers of the history.")
    after: int | None = Field(
        default=None, ge=0, description="The version that the change is based on; refused when there is a newer one by now."
    )


class Back(Strict):
    """The version to go back to."""

    version: int = Field(ge=1, le=2**62, description="One of the stored versions.")
    note: Note = Field(default="", max_length=MAX_NOTE_CHARS, description="The reason of the change, for readers of the history.")


@router.post(
    "/policies/reload",
    response_model=PoliciesShown,
    responses=errors(401, 403, 409, 503),
    summary="Read the policy folder now",
)
async def reload(call: Asking) -> Response:
    """Read the folder, or what the database has, as its change would have it read; one that has mistakes changes nothing, and the answer
    names them."""
    if call.parts.policies is not None:
        await call.parts.policies.refresh()
    states = await call.parts.reloading.reload()
    if not states:
        raise AdminProblem(503, "no_worker", "No worker answers. Try again.")
    refused = next((state for state in states if state.problems), None)
    if refused is not None:
        count = refused.problem_count
        message = f"{count} problem{'s' * (count != 1)}; the policies before ({refused.digest}) stay in force. "
        raise AdminProblem(409, "policies_refused", message + "\n".join(refused.problems))
    if len({state.digest for state in states}) > 1:
        raise AdminProblem(409, "policies_differ", "The workers read different files: the folder was being changed. Try again.")
    return answer(200, {"digest": states[0].digest, "workers": len(states), "warnings": states[0].warnings})


@router.get("/policies/active", response_model=ActivePolicies, responses=errors(401, 403, 503), summary="Show the active policies")
async def active(call: Asking) -> Response:
    """Show what workers have, where it comes from, and the files that they read, whoever owns them."""
    read = _files(call)
    states = [worker.policies for worker in await call.parts.gateway.workers()] if call.parts.gateway is not None else []
    refused = next((state for state in states if state.problems), None)
    version = None
    if call.parts.policies is not None:
        async with call.parts.policies.reading() as versions:
            version = await versions.current()
    texts: Mapping[str, str] = {}
    unreadable = ""
    try:
        texts = await asyncio.to_thread(read.texts)
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        unreadable = str(error)[:MAX_TEXT_CHARS]
    files = _within(texts)
    shown = {
        "source": "files" if call.parts.policies is None else "database",
        "folder": read.folder,
        "version": version,
        "digests": Counter(state.digest for state in states),
        "loaded_unix": max((state.loaded_unix for state in states), default=None),
        "problems": refused.problems if refused is not None else (),
        "problem_count": refused.problem_count if refused is not None else 0,
        "warnings": states[0].warnings if states else (),
        "files": files,
        "left_out": len(texts) - len(files),
        "unreadable": unreadable,
    }
    return answer(200, shown)


@router.post("/policies/check", response_model=PoliciesChecked, responses=POST_ERRORS, summary="Check policies without setting them")
async def check(call: Posting, body: CheckedPolicies) -> Response:
    """Compile a whole set of policy files against this gateway's pools, and say what they would change; nothing is changed."""
    return answer(200, await asyncio.to_thread(_checked, _files(call), body.files))


@router.get("/policies", response_model=WholeVersion, responses=STORED_ERRORS, summary="Show the newest policies of the database")
async def newest(call: Asking) -> Response:
    """Show the newest version, whole."""
    async with _owned(call).reading() as versions:
        return answer(200, await _whole(versions, await versions.current()))


@router.get("/policies/versions", response_model=VersionPage, responses=STORED_ERRORS, summary="List versions of the policies")
async def history(call: Asking, query: Annotated[PageQuery, Query()]) -> Response:
    """Show who changed the policies when, newest first."""
    before = decode_cursor(query.cursor, int)
    async with _owned(call).reading() as versions:
        records = await versions.newest(before, query.limit + 1)
    return answer(200, page_of(records, query.limit, _shown, lambda record: record.version))


@router.get(
    "/policies/versions/{version}", response_model=WholeVersion, responses=STORED_ERRORS, summary="Show one version of the policies"
)
async def show(call: Asking, version: Number) -> Response:
    """Show one version, whole."""
    async with _owned(call).reading() as versions:
        return answer(200, await _whole(versions, version))


@router.post("/policies", status_code=201, response_model=VersionShown, responses=POST_ERRORS, summary="Set the policies")
async def apply(call: Posting, body: NewPolicies) -> Response:
    """Put a new version into the database, in force within seconds on every gateway; files with mistakes change nothing, and the answer
    names each with file, line and key."""
    owned = _owned(call)
    digest = await _digest(owned, body.files)

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        current = await books.policies.current()
        if body.after is not None and body.after != current:
            raise AdminProblem(409, "changed", f"{CHANGED} The newest version is {current}.", "after")
        return await _appended(call, books, "policy.apply", _New(body.files, digest, body.note))

    done = await call.change(work)
    await owned.refresh()
    return done


@router.post("/policies/rollback", status_code=201, response_model=VersionShown, responses=POST_ERRORS, summary="Go back to old policies")
async def rollback(call: Posting, body: Back) -> Response:
    """Make a new version with the files of an old one; refused where they no longer fit the settings."""
    owned = _owned(call)
    async with owned.reading() as versions:
        files = await versions.files(body.version)
    if files is None:
        raise AdminProblem(404, "not_found", f"Version {body.version} is not kept.", "version")
    new = _New(files, await _digest(owned, files), body.note or f"back to version {body.version}")

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        return await _appended(call, books, "policy.rollback", new)

    done = await call.change(work)
    await owned.refresh()
    return done


@dataclass(frozen=True, slots=True)
class _New:
    files: Mapping[str, str]
    digest: str
    note: str


def _files(call: AdminCall) -> PolicyFiles:
    if call.parts.policy_files is None:
        raise AdminProblem(503, "no_supervisor", "This admin port belongs to no running gateway.")
    return call.parts.policy_files


def _within(texts: Mapping[str, str]) -> dict[str, str]:
    """The files by name, as many as fit into the answer."""
    shown = {}
    left = MAX_SHOWN_CHARS
    for name in sorted(texts):
        left -= len(texts[name])
        if left < 0:
            break
        shown[name] = texts[name]
    return shown


def _checked(read: PolicyFiles, files: Mapping[str, str]) -> dict[str, Any]:
    try:
        policies = read.compiled(files)
    except ConfigError as error:
        problems = [str(problem) for problem in error.problems]
        return PoliciesChecked(
            ok=False, digest="", problems=problems[:MAX_SHOWN], problem_count=len(problems), warnings=[], changes=[], change_count=0
        ).model_dump()
    try:
        changes = list(differences(read.compiled(read.texts()), policies))
    except (OSError, UnicodeDecodeError, ConfigError):
        changes = ["The files that workers read now cannot be read or have mistakes, so nothing can be compared with them."]
    return PoliciesChecked(
        ok=True,
        digest=policies.digest,
        problems=[],
        problem_count=0,
        warnings=[str(warning) for warning in policies.warnings][:MAX_SHOWN],
        changes=changes[:MAX_CHANGES],
        change_count=len(changes),
    ).model_dump()


def _owned(call: AdminCall) -> DatabasePolicies:
    if call.parts.policies is None:
        raise AdminProblem(
            409, "policies_are_files", "This gateway's policies are files (policies_from: files): change those, or the setting."
        )
    return call.parts.policies


async def _digest(owned: DatabasePolicies, files: Mapping[str, str]) -> str:
    try:
        return (await asyncio.to_thread(owned.compiled, files)).digest
    except ConfigError as error:
        raise AdminProblem(400, "policies_refused", f"Nothing was changed: {listing(error.problems)}", "files") from None


async def _appended(call: AdminCall, books: Transactions, action: str, new: _New) -> Done:
    before = await books.policies.find(await books.policies.current())
    appended = await books.policies.append(new.files, new.digest, call.principal.actor, new.note, call.parts.wall())
    shown = _shown(appended)
    return Done(201, action, f"policies/{appended.version}", shown, before=None if before is None else _shown(before), after=shown)


async def _whole(versions: PolicyVersions, version: int) -> dict[str, Any]:
    record, files = await versions.find(version), await versions.files(version)
    if record is None or files is None:
        raise not_found()
    return {**_shown(record), "files": dict(files)}


def _shown(record: PolicyVersion) -> dict[str, Any]:
    return {
        "version": record.version,
        "digest": record.digest,
        "author": record.author,
        "note": record.note,
        "at_unix": record.at_unix,
        "file_count": record.files,
    }
