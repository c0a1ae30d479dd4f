"""`tidegate explain`: why a request went where it went, or where one would go now."""

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.admin_client import ADMIN, API, AdminUrl, TokenFile, api, segment
from gateway.cli.printing import AsJson, fail, moment, out, print_json

CHAT: Final = "/v1/chat/completions"
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
"""As much as the admin port takes."""


def explain(
    request_id: Annotated[str, typer.Argument(help="The request's id: `x-request-id` of its reply, or of the access log.")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A request's JSON body; shows where it would go now, and sends nothing.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="With --file: whose policy places it, and whose prefixes count.")] = "default",
    project: Annotated[str, typer.Option(help="With --file: the tenant's project whose request it is.")] = "default",
    endpoint: Annotated[str, typer.Option(help="With --file: the path it would be sent to.")] = CHAT,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print a placing decision: every backend with every term of its cost, and why those that were not taken lost.

    Each worker remembers its last 1,000 decisions.
    """
    if bool(request_id) is (file is not None):
        fail("name a request's id, or a request with --file", code=2)
    client = api(admin, token_file)
    if file is None:
        found = client.read(f"{API}/requests/{segment(request_id)}/explanation")
    else:
        wanted = {"tenant": tenant, "project": project, "endpoint": endpoint, "request": _read(file)}
        found = client.post(f"{API}/requests/explanation", wanted)
    if as_json:
        print_json(found)
        return
    for line in (*summary(found), *blocks(found)):
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


def summary(found: dict[str, Any]) -> list[str]:
    """The decision in sentences."""
    lines = [
        f"{found['request_id']} of {found['tenant']} at {moment(found['at_unix'])}: "
        f"{found['model']} in pool {found['pool']} by {found['policy']}",
        f"{found['prompt_tokens']} prompt tokens, {found['chain_blocks']} blocks looked up; {found['output_tokens']} tokens of answer "
        f"expected, in 9 of 10 cases at most {found['output_tokens_p90']}"
        + (f"; adapter {found['lora']}" if found["lora"] else "")
        + ("; of a conversation" if found["session"] else ""),
    ]
    chosen = found["chosen"] or "nobody: no backend can serve it"
    said = f"chosen: {chosen}" + (f", because of {found['why']} among those that cost nearly the same" if found["why"] else "")
    lines.append(said + (f"; tried last: {found['served_by']}" if found["served_by"] else ""))
    if found["queued"]:
        seconds = f" for {found['queued_s']:.3g} s" if found["queued"] != "waiting" else ""
        lines.append(f"waited for room{seconds}, {found['queued_ahead']} tokens before it: {found['queued']}")
    if found["steps"]:
        said = f"degraded by the policy of {found['tenant']}: {', '.join(found['steps'])}"
        lines.append(said + (f"; asked for {found['asked_model']}" if found["asked_model"] else ""))
    elif found["asked_model"]:
        lines.append(f"asked for {found['asked_model']}")
    if found["rule"]:
        lines.append(f"by the rule {found['rule']} of the policy of {found['tenant']}")
    lines += [f"could not be answered by {one}" for one in found["fell_back"]]
    if found["rollout"]:
        lines.append(f"dealt out by the rollout {found['rollout']}")
    lines += [f"not degraded to {one}" for one in found["passed_over"]]
    return [*lines, found["split"]] if found.get("split") else lines


def blocks(found: dict[str, Any]) -> list[str]:
    """Every contender with every term, a paragraph each: a table with a column for each term fits no terminal."""
    lines = []
    for one in found["contenders"]:
        if one["cost"] is None:
            lines.append(f"  {one['backend']}  out: {one['lost']}")
            continue
        lost = f"  {one['lost']}" if one["lost"] else "  taken"
        lines.append(f"  {one['backend']}  cost {one['cost']:.4g}, holds {one['held_tokens']:.0f} tokens{lost}")
        # adding 0 makes -0 a 0
        terms = ", ".join(f"{name} {value + 0.0:.4g}" for name, value in one["terms"].items())
        lines += [f"    {terms}"] if terms else []
    return lines
