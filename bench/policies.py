"""What policies cost: reading 1,000 tenants with 50 rules each, and asking them about one request.

`python -m bench.policies`; medians, in one process, ways interleaved.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from domain.ask import Endpoint
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.http.openai import interpret
from gateway.request.policy_match import Asked, match_policy
from policies.compile import PolicySet
from policies.load import load_policies
from tenancy.rights import EVERYTHING

KINDS = (
    'headers["x-team"] == "team-{n}" && prompt_tokens > {n}00',
    "prompt_tokens > {n}000 && max_output_tokens > 20",
    'project == "p{n}" || user.startsWith("u{n}-")',
    'now.getHours("Europe/Berlin") == 25 || metadata.job == "job-{n}"',
    'stream && model.matches("^m{n}[a-z]+$")',
)
"""None of them holds for the request that is asked about."""


def policy(tenant: int, rules: int, distinct: bool) -> str:
    """One file. Its conditions are those of every other tenant, unless `distinct`."""
    first = tenant * rules if distinct else 0
    lines = [f"tenant: t{tenant}", "models:", *(f"  - {{name: m{i}, pool: chat}}" for i in range(3)), *(["rules:"] if rules else [])]
    for i in range(rules):
        condition = KINDS[i % len(KINDS)].format(n=first + i + 10)
        lines.append(f"  - {{name: r{i}, if: '{condition}', then: {{priority: 0.{i + 10}}}}}")
    return "\n".join(lines) + "\n"


def load(folder: Path, tenants: int, rules: int, distinct: bool) -> tuple[float, PolicySet]:
    """Seconds to read, check and compile them."""
    for tenant in range(tenants):
        (folder / f"t{tenant}.yaml").write_text(policy(tenant, rules, distinct))
    begun = time.perf_counter()
    made = load_policies(folder, ["chat"])
    return time.perf_counter() - begun, made


def microseconds(ways: dict[str, Callable[[], Any]], rounds: int = 40, each: int = 250) -> dict[str, float]:
    """Median microseconds of a call, by way."""
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.perf_counter()
            for _ in range(each):
                way()
            seen[name].append((time.perf_counter() - begun) / each * 1e6)
    return {name: median(found) for name, found in seen.items()}


def request(tenant: str, model: str) -> Asked:
    """With the headers that OpenAI's client sends."""
    body = {"model": model, "messages": [{"role": "user", "content": "x" * 1_000}], "max_tokens": 10, "metadata": {"job": "none"}}
    ask = interpret(Endpoint.CHAT, msgspec.json.encode(body))
    headers = {f"x-stainless-{name}".encode(): b"value" for name in ("arch", "os", "lang", "runtime", "retry-count", "async")}
    headers |= {b"x-team": b"red", b"user-agent": b"OpenAI/Python", b"content-type": b"application/json", b"accept": b"*/*"}
    return Asked(ask, Caller(TenantId(tenant), ProjectId("lab"), KeyId("k")), "", headers, 1_800_000_000.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--rules", type=int, default=50)
    told = parser.parse_args()
    for distinct in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            gc.collect()
            took, made = load(Path(folder), told.tenants, told.rules, distinct)
        alike = "every condition another one" if distinct else "the tenants' conditions alike"
        print(f"{told.tenants} tenants x {told.rules} rules, {alike}: {took:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        plain = load(Path(folder), 1, 0, False)[1]
    one = request("t0", "m1")
    ways = {
        "without rules": lambda: match_policy(plain, one, EVERYTHING, "k"),
        f"{told.rules} rules": lambda: match_policy(made, one, EVERYTHING, "k"),
    }
    for name, found in microseconds(ways).items():
        print(f"{name}: {found:.2f} us a request")


if __name__ == "__main__":
    main()
