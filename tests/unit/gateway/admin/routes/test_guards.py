"""Guard rules over the admin API: what they said, the last blocks, and texts on trial."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.admin.routes.guards import LOOKED_THROUGH, PART
from gateway.guards.facts import GuardCount, GuardRecord
from gateway.process.snapshots import WorkerSnapshot
from gateway.record import Record
from gateway.request_log.collector import logged_request
from gateway.request_log.ring import RingLine
from gateway.telemetry.access_log import line_of
from gateway.telemetry.metrics import Metrics
from tenancy.audit import Entry, canonical
from tenancy.guard_blocks import BLOCK, further_entry
from tests.admin_harness import API, OWNER, Admin, Judges, Processes, admin_port, bearer

TEST = f"{API}/guards/test"
RULES = """
rules:
  - {id: bombs, kind: words, mode: block, words: [bomb]}
  - {id: people, kind: pii, mode: redact, types: [email]}
  - {id: trial, kind: words, mode: shadow, words: [hello]}
  - {id: model, kind: detector, mode: block, detector: shield, on_error: open}
"""


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        for tenant in ("acme", "bolt", "away"):
            assert (await made.client.post(f"{API}/tenants", json={"name": tenant}, headers=OWNER)).status_code == 201
        yield made


async def trial(admin: Admin, headers: dict[str, str] = OWNER, **wanted: Any) -> tuple[int, dict[str, Any]]:
    reply = await admin.client.post(TEST, json=wanted, headers=headers)
    return reply.status_code, reply.json()


async def test_what_rules_said_is_shown_by_tenant_and_rule(admin: Admin) -> None:
    metrics = Metrics(["m"])
    said = GuardRecord("block", "bombs", "input", False, (GuardCount("bombs", "word", "block", "input", 1),), (), (), "v")
    tried = GuardRecord("passed", "", "", False, (GuardCount("trial", "word", "shadow", "output", 3),), ("model",), (), "v")
    record = Record(request_id="r", at_unix=1.0, outcome="ok", status=200, duration_s=0.1, overhead_s=0.1, tenant="acme")
    for tenant, guards in (("acme", said), ("acme", tried), ("bolt", tried)):
        metrics.observe(msgspec.structs.replace(record, tenant=tenant, guards=guards))
    worker = WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, metrics=metrics.snapshot(0))
    processes = admin.parts.gateway
    assert isinstance(processes, Processes)
    processes.snapshots = [worker, worker]
    shown = (await admin.client.get(f"{API}/guards", headers=bearer("auditor"))).json()
    assert [(one["tenant"], one["passed"], one["block"]) for one in shown["tenants"]] == [("acme", 2, 2), ("bolt", 2, 0)]
    assert shown["rules"][1] == {"tenant": "acme", "rule": "trial", "mode": "shadow", "direction": "output", "findings": 6}
    assert shown["failures"][0] == {"tenant": "acme", "rule": "model", "failures": 2}
    own = (await admin.client.get(f"{API}/guards", headers=bearer("tenant-admin", "bolt"))).json()
    assert {one["tenant"] for part in own.values() for one in part} == {"bolt"}


async def test_the_last_blocks_are_those_of_the_audit_and_a_tenants_admin_sees_the_own_tenants(admin: Admin) -> None:
    async with admin.parts.change() as books:
        for number, tenant in enumerate(("acme", "bolt", "acme")):
            after = {
                "request_id": f"r{number}",
                "model": "m",
                "rule": "bombs",
                "kinds": ["word"],
                "direction": "input",
                "late": False,
                "version": "v",
            }
            entry = Entry(f"key k{number}@{tenant}", "", "", BLOCK, f"tenant/{tenant}/guard/bombs", tenant, after=canonical(after))
            await books.change.write_down(entry)
        await books.change.write_down(further_entry("acme", 5, 70))
    page = (await admin.client.get(f"{API}/guards/events?limit=3", headers=bearer("operator"))).json()
    assert [(one["tenant"], one["request_id"], one["rule"], one["further"]) for one in page["items"]] == [
        ("acme", "", "", 70),
        ("acme", "r2", "bombs", 0),
        ("bolt", "r1", "bombs", 0),
    ]
    assert page["items"][1]["key"] == "key k2@acme"
    rest = (await admin.client.get(f"{API}/guards/events?cursor={page['next_cursor']}", headers=OWNER)).json()
    assert ([one["request_id"] for one in rest["items"]], rest["next_cursor"]) == (["r0"], None), "what people changed is not among them"
    own = (await admin.client.get(f"{API}/guards/events", headers=bearer("tenant-admin", "bolt"))).json()
    assert [one["request_id"] for one in own["items"]] == ["r1"]


async def test_rules_as_written_judge_without_a_worker(admin: Admin) -> None:
    status, shown = await trial(admin, bearer("operator"), rules=RULES, input=["hello", "to ann@example.com", "a bomb"])
    assert status == 200, shown
    assert [one["action"] for one in shown["verdicts"]["results"]] == ["pass", "change", "block"]
    assert shown["verdicts"]["results"][0]["findings"][0]["mode"] == "shadow"
    assert shown["verdicts"]["results"][1]["text"] == "to [EMAIL]"
    assert [(rule["id"], rule["asked"]) for rule in shown["rules"]] == [
        ("bombs", True),
        ("people", True),
        ("trial", True),
        ("model", False),
    ]
    answer = await trial(admin, rules=RULES, input="a bomb", direction="output")
    assert answer[1]["verdicts"]["action"] == "block"


async def test_the_rules_of_a_tenant_are_asked_of_a_worker(admin: Admin) -> None:
    judges = admin.parts.guards
    assert isinstance(judges, Judges)
    status, shown = await trial(admin, bearer("tenant-admin"), tenant="acme", model="m", guards=["asked"], input="hello")
    assert (status, shown["rules"][0]["words"]) == (200, "shadow pii on input")
    (asked,) = judges.asked
    assert (asked.tenant, asked.project) == ("acme", "default")
    assert msgspec.json.decode(asked.body) == {"input": "hello", "direction": None, "model": "m", "guardrails": ["asked"]}
    assert (await trial(admin, tenant="away", input="hello"))[0] == 503


@pytest.mark.parametrize(
    ("headers", "wanted", "status", "param"),
    [
        (OWNER, {"input": "x"}, 400, "tenant"),
        (OWNER, {"input": "x", "tenant": "acme", "rules": RULES}, 400, "tenant"),
        (OWNER, {"input": "x", "tenant": "nobody"}, 404, None),
        (OWNER, {"tenant": "acme"}, 400, "input"),
        (OWNER, {"input": "x", "tenant": "acme", "direction": "sideways"}, 400, "direction"),
        (OWNER, {"input": "x", "rules": "rules: [{id: a}]"}, 400, "rules"),
        (OWNER, {"input": "x", "rules": "rules: ["}, 400, "rules"),
        (OWNER, {"input": "x", "rules": "rules: [{id: a, kind: pattern, mode: flag, pattern: '('}]"}, 400, "rules"),
        (OWNER, {"input": "x", "rules": RULES, "model": "m"}, 400, "rules"),
        (OWNER, {"input": {"model": "m"}, "rules": RULES}, 400, "input"),
        (bearer("tenant-admin"), {"input": "x", "rules": RULES}, 403, "rules"),
        (bearer("tenant-admin"), {"input": "x", "tenant": "bolt"}, 404, None),
        (bearer("auditor"), {"input": "x", "tenant": "acme"}, 403, None),
    ],
)
async def test_a_trial_that_means_nothing_or_is_not_allowed_is_refused_by_name(
    admin: Admin, headers: dict[str, str], wanted: dict[str, Any], status: int, param: str | None
) -> None:
    refused, body = await trial(admin, headers, **wanted)
    assert (refused, body["error"]["param"]) == (status, param), body


async def keep(admin: Admin, *requests: tuple[int, str, GuardRecord | None]) -> None:
    """Put requests into the log: number, tenant, and what guard rules said."""
    assert admin.parts.requests is not None
    bare = {"outcome": "ok", "status": 200, "duration_s": 0.1, "overhead_s": 0.0, "model": "m"}
    made = [
        logged_request(RingLine(line_of(Record(f"r{number}", 1_800_000_000.0 + number, tenant=tenant, guards=said, **bare))), 72)
        for number, tenant, said in requests
    ]
    await admin.parts.requests.collector.store.add(made, [])


def said(*counts: GuardCount, word: str = "passed") -> GuardRecord:
    return GuardRecord(word, "", "", False, counts, (), (), "v")


TRIED = GuardCount("trial", "S1: of, weapons=1", "shadow", "output", 3)
"""A kind as a detector may name it, with the signs of the log in it."""


async def test_requests_that_rules_on_trial_differ_about_are_listed(admin: Admin) -> None:
    people = GuardCount("people", "email", "redact", "input", 2)
    await keep(
        admin,
        (1, "acme", said(people, TRIED, word="changed")),
        (2, "acme", said(people, word="changed")),
        (3, "bolt", said(TRIED, GuardCount("other", "word", "shadow", "input", 1))),
        (4, "acme", said()),
        (5, "acme", None),
    )
    shown = (await admin.client.get(f"{API}/guards/shadow", headers=bearer("auditor"))).json()
    assert [(one["request_id"], one["tenant"], one["guard"]) for one in shown["items"]] == [
        ("r3", "bolt", "passed"),
        ("r1", "acme", "changed"),
    ]
    assert shown["items"][1]["findings"] == [{"rule": "trial", "kind": "S1: of, weapons=1", "direction": "output", "count": 3}]
    assert (shown["next_cursor"], shown["looked_through"]) == (None, 5)
    of_a_rule = (await admin.client.get(f"{API}/guards/shadow?rule=other", headers=OWNER)).json()["items"]
    assert [(one["request_id"], [found["rule"] for found in one["findings"]]) for one in of_a_rule] == [("r3", ["other"])]
    own = (await admin.client.get(f"{API}/guards/shadow", headers=bearer("tenant-admin", "acme"))).json()
    assert [one["request_id"] for one in own["items"]] == ["r1"]
    foreign = await admin.client.get(f"{API}/guards/shadow?tenant=bolt", headers=bearer("tenant-admin", "acme"))
    assert foreign.status_code == 404
    assert (await admin.client.get(f"{API}/guards/shadow?cursor=x", headers=OWNER)).status_code == 400


@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_pages_reach_every_request_and_look_through_a_bounded_number(admin: Admin, limit: int) -> None:
    count = LOOKED_THROUGH + PART + 3
    differ = {0, 1, PART - 1, PART, LOOKED_THROUGH - 1, LOOKED_THROUGH, count - 1}
    await keep(admin, *((number, "acme", said(TRIED) if number in differ else None) for number in range(count)))
    found: list[str] = []
    cursor, looked = "", 0
    while True:
        page = (
            await admin.client.get(f"{API}/guards/shadow?limit={limit}" + (f"&cursor={cursor}" if cursor else ""), headers=OWNER)
        ).json()
        assert page["looked_through"] <= LOOKED_THROUGH
        assert len(page["items"]) <= limit
        found += [one["request_id"] for one in page["items"]]
        looked += page["looked_through"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [f"r{number}" for number in sorted(differ, reverse=True)]
    assert looked == count
