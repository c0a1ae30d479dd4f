"""`tidegate explain`: why a request went to its backend, or where a request would go now."""

import re
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.admin_client import API, segment
from gateway.cli.connection import GatewayOptions
from gateway.cli.printing import AsJson, fail, moment, out, print_json

CHAT: Final = "/v1/chat/completions"
REQUEST_ID: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:-]{1,64}")
"""The form of request ids, as the admin API takes them; `.` and `..` are no segments of a path."""
SUPPOSED: Final = "supposed"
"""The id of a request that is not sent."""
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
"""Largest request that the admin port takes."""


def explain(
    gateway: GatewayOptions,
    request_id: Annotated[str, typer.Argument(help="The request's id: `x-tidegate-request-id` of its reply, or of the access log.")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A request's JSON body; shows where it would go now, and sends nothing.")
    ] = None,
    tenant: Annotated[
        str,
        typer.Option(
            help="The request's tenant: the id may then be the caller's own, of `x-request-id`. With --file: whose policy places it, and "
            "whose prefixes count; `default` unless given."
        ),
    ] = "",
    project: Annotated[str, typer.Option(help="With --file: the tenant's project whose request it is.")] = "default",
    endpoint: Annotated[str, typer.Option(help="With --file: the path it would be sent to.")] = CHAT,
    as_json: AsJson = False,
) -> None:
    """Print a placing decision: every backend with every term of its cost, and why those that were not taken lost.

    Decisions are kept for as long as `explanations` in the settings says.
    """
    if bool(request_id) is (file is not None):
        fail("name a request's id, or a request with --file", code=2)
    if request_id and not REQUEST_ID.fullmatch(request_id):
        fail(
            f"{ascii(request_id)[:80]} is no request id: an id has 1 to 64 letters, digits, dots, colons, dashes and underscores, as in "
            "x-request-id of a reply; to see where a request would go, name its file with --file",
            code=2,
        )
    client = gateway.api()
    if file is None:
        of_tenant = f"?tenant={segment(tenant)}" if tenant else ""
        decision = client.read(f"{API}/requests/{segment(request_id)}/explanation{of_tenant}")
    else:
        body = {"tenant": tenant or "default", "project": project, "endpoint": endpoint, "request": _read(file)}
        decision = client.post(f"{API}/requests/explanation", body)
    if as_json:
        print_json(decision)
        return
    for line in (*summary(decision), *blocks(decision)):
        out.print(line, markup=False, soft_wrap=True)


def _read(file: Path) -> Any:
    try:
        text = file.read_bytes()
        if len(text) > MAX_FILE_BYTES:
            fail(f"--file {file} is over {MAX_FILE_BYTES} bytes", code=2)
        return msgspec.json.decode(text)
    except OSError as error:
        fail(f"--file {file} cannot be read ({error.strerror})", code=2)
    except msgspec.DecodeError as error:
        fail(f"--file {file} is no JSON: {error}", code=2)


def summary(decision: dict[str, Any]) -> list[str]:
    """The routing decision in sentences, and how the request ended."""
    lines = _without_backend(decision) if not decision["policy"] else _placed(decision)
    if decision.get("caller_request_id"):
        lines.append(f"its caller's own id: {decision['caller_request_id']}")
    return [*lines, *_ended(decision)]


def _without_backend(decision: dict[str, Any]) -> list[str]:
    """A request that the cache answered, or that guard rules refused."""
    asked = f" (asked for {decision['asked_model']})" if decision["asked_model"] else ""
    first = f"{decision['request_id']} of {decision['tenant']} at {moment(decision['at_unix'])}: {decision['model']}{asked}"
    if not decision["cache"].startswith("hit"):
        return [first, decision["reason"]]
    return [
        first,
        f"answered from the cache ({decision['cache']}) with an answer that was {decision['cache_age_s']:.0f} s old; no backend was asked",
    ]


def _ended(decision: dict[str, Any]) -> list[str]:
    """How the request ended; a request that is not sent has no end."""
    ended = decision["ended"]
    if ended is None:
        return [] if decision["request_id"] == SUPPOSED else ["how it ended is not known: it still runs, or its worker ended first"]
    first_token = "" if ended["first_token_s"] is None else f", first token after {ended['first_token_s']:.3g} s"
    times = f"{ended['queue_s'] * 1000:.0f} ms of it in the queue{first_token}"
    tokens = f"{ended['prompt_tokens']} prompt tokens ({ended['cached_tokens']} cached), {ended['completion_tokens']} tokens of answer"
    cache = f"; cache: {decision['cache']}" if decision["cache"] and decision["policy"] else ""
    guards = [f"guard rules: {decision['guards']}"] if decision.get("guards") else []
    end = f"ended: {ended['outcome']} with status {ended['status']} after {ended['duration_s']:.3g} s, {times}; {tokens}{cache}"
    return [*guards, end]


def _placed(decision: dict[str, Any]) -> list[str]:
    """A request that was placed on a backend, or would be."""
    lines = [
        f"{decision['request_id']} of {decision['tenant']} at {moment(decision['at_unix'])}: "
        f"{decision['model']} in pool {decision['pool']} by {decision['policy']}",
        f"{decision['prompt_tokens']} prompt tokens, {decision['chain_blocks']} blocks looked up; "
        f"{decision['output_tokens']} tokens of answer expected, in 9 of 10 cases at most {decision['output_tokens_p90']}"
        + (f"; adapter {decision['lora']}" if decision["lora"] else "")
        + ("; of a conversation" if decision["session"] else ""),
    ]
    chosen = decision["chosen"] or "nobody: no backend can serve it"
    sentence = f"chosen: {chosen}" + (f", because of {decision['why']} among those that cost nearly the same" if decision["why"] else "")
    lines.append(sentence + (f"; tried last: {decision['served_by']}" if decision["served_by"] else ""))
    if decision["reason"]:
        lines.append(decision["reason"])
    if decision["queued"]:
        seconds = f" for {decision['queued_s']:.3g} s" if decision["queued"] != "waiting" else ""
        lines.append(f"waited for room{seconds}, {decision['queued_ahead']} tokens before it: {decision['queued']}")
    if decision["steps"]:
        sentence = f"degraded by the policy of {decision['tenant']}: {', '.join(decision['steps'])}"
        lines.append(sentence + (f"; asked for {decision['asked_model']}" if decision["asked_model"] else ""))
    elif decision["asked_model"]:
        lines.append(f"asked for {decision['asked_model']}")
    if decision["rule"]:
        lines.append(f"by the rule {decision['rule']} of the policy of {decision['tenant']}")
    lines += [f"could not be answered by {attempt}" for attempt in decision["fell_back"]]
    if decision["rollout"]:
        lines.append(f"dealt out by the rollout {decision['rollout']}")
    lines += [f"not degraded to {step}" for step in decision["passed_over"]]
    return [*lines, decision["split"]] if decision.get("split") else lines


def blocks(decision: dict[str, Any]) -> list[str]:
    """Every contender with every term, one paragraph each: a table with a column for each term fits no terminal."""
    lines = []
    for contender in decision["contenders"]:
        if contender["cost"] is None:
            lines.append(f"  {contender['backend']}  out: {contender['lost']}")
            continue
        lost = f"  {contender['lost']}" if contender["lost"] else "  taken"
        lines.append(f"  {contender['backend']}  cost {contender['cost']:.4g}, holds {contender['held_tokens']:.0f} tokens{lost}")
        # adding 0 makes -0 a 0
        terms = ", ".join(f"{name} {value + 0.0:.4g}" for name, value in contender["terms"].items())
        lines += [f"    {terms}"] if terms else []
    return lines
