"""Checks across the fields of a pool with `disaggregation`: roles without their counterparts, fields of other dialects."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from backends.dialects import DIALECTS
from backends.dialects.dialect import Dialect
from policies.problems import Path_, Problem

if TYPE_CHECKING:
    from gateway.contradictions import Written


def halves(written: "Written") -> Iterator[Problem]:
    """Every problem between the roles of a pool's backends, its `disaggregation` and its dialect."""
    for i in range(written.count("pools")):
        dialect = DIALECTS.get(written.text("pools", i, "dialect") or "vllm")
        if dialect is not None:
            yield from _pool(written, i, dialect)


def _pool(written: "Written", pool: int, dialect: Dialect) -> Iterator[Problem]:
    located = written.located
    on = written.value("pools", pool, "disaggregation") is not None
    protocol = dialect.disaggregation
    if on and protocol is None:
        able = ", ".join(name for name, candidate in DIALECTS.items() if candidate.disaggregation is not None)
        message = f"engines of dialect {dialect.name} cannot be told to share a request"
        yield located.problem(("pools", pool, "disaggregation"), message, f"remove it; these can: {able}")
        return
    roles = []
    for j in range(written.count("pools", pool, "backends")):
        at: Path_ = ("pools", pool, "backends", j)
        role = written.text(*at, "role") or "both"
        roles.append(role)
        if role != "both" and not on:
            hint = "write disaggregation: {kv_bytes_token: …, bandwidth_gb_s: …} in the pool, or role: both"
            yield located.problem((*at, "role"), f"{role} needs a pool with disaggregation", hint)
        asks = protocol is not None and protocol.at_once and role == "prefill"
        port = written.value(*at, "bootstrap_port")
        if on and asks and port is None:
            message = f"engines of dialect {dialect.name} are asked for KV at a port of their own"
            yield located.problem(at, message, "write bootstrap_port, as its --disaggregation-bootstrap-port says (8998 by default)")
        elif port is not None and not asks:
            message = "only prefill engines of dialect sglang have one"
            yield located.problem((*at, "bootstrap_port"), message, "remove it, or write role: prefill")
    if on and protocol is not None and written.value("pools", pool, "discover") is None and roles:
        yield from _counterparts(written, pool, set(roles), pairs_whole=protocol.pairs_whole)


def _counterparts(written: "Written", pool: int, roles: set[str], *, pairs_whole: bool) -> Iterator[Problem]:
    located = written.located
    at = ("pools", pool, "disaggregation")
    whole = pairs_whole and "both" in roles
    if "decode" not in roles and not whole:
        yield located.problem(at, "nobody generates from what is handed over", "give one backend role: decode")
    elif "prefill" not in roles and not whole:
        yield located.problem(at, "nobody computes prompts for others", "give one backend role: prefill")
    elif roles == {"both"} and written.count("pools", pool, "backends") < 2:
        yield located.problem(at, "one backend cannot share a request with itself", "list a second one, or remove disaggregation")
    if "both" not in roles and written.count("pools", pool, "loras"):
        message = "requests with an adapter are served whole, and no backend of this pool does that"
        yield located.problem(("pools", pool, "loras"), message, "add a backend with role: both, or remove the adapters")
