"""The queues over the admin API."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from domain.priority import Class
from gateway.process.snapshots import WorkerSnapshot
from gateway.record import Record
from gateway.telemetry.metrics import Metrics
from tests.admin_harness import API, OWNER, Admin, Processes, Queues, admin_port, bearer


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def test_the_next_request_is_of_the_size_that_is_asked_for(admin: Admin) -> None:
    queues = admin.parts.queues
    assert isinstance(queues, Queues)
    shown = (await admin.client.get(f"{API}/queues?tokens=9000", headers=bearer("auditor"))).json()
    assert shown["tokens"] == 9000
    (pool,) = shown["pools"]
    assert (pool["pool"], pool["workers"], pool["unreached"], pool["tokens_per_s"]) == ("chat", 1, 0, 500.0)
    assert pool["prospects"] == [
        {
            "tenant": "acme",
            "priority": "default",
            "waiting": 3,
            "waits": 1,
            "least_wait_s": 1.5,
            "most_wait_s": 2.5,
            "may_wait_s": 60.0,
            "refused": {"tenant_count": 1},
        }
    ]
    await admin.client.get(f"{API}/queues", headers=OWNER)
    assert queues.asked == [9000, 500]
    wrong = await admin.client.get(f"{API}/queues?tokens=0", headers=OWNER)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tokens")
    queues.seen = None
    away = await admin.client.get(f"{API}/queues", headers=OWNER)
    assert (away.status_code, away.json()["error"]["code"]) == (503, "no_worker")


async def test_refusals_are_shown_by_pool_class_and_reason(admin: Admin) -> None:
    metrics = Metrics(["m"])
    record = Record(
        request_id="r", at_unix=1.0, outcome="overloaded", status=503, duration_s=0.1, overhead_s=0.1, tenant="acme", pool="chat"
    )
    for priority, queued in ((Class.BATCH, "too_long"), (Class.BATCH, "too_long"), (Class.BATCH, "count"), (Class.CRITICAL, "displaced")):
        metrics.observe(msgspec.structs.replace(record, queued=queued, priority_class=priority.word))
    worker = WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, metrics=metrics.snapshot(0))
    processes = admin.parts.gateway
    assert isinstance(processes, Processes)
    processes.snapshots = [worker, worker]
    shown = (await admin.client.get(f"{API}/queues/refusals", headers=bearer("operator"))).json()
    assert shown["refusals"] == [
        {"pool": "chat", "priority": "critical", "reasons": {"displaced": 2}},
        {"pool": "chat", "priority": "batch", "reasons": {"too_long": 4, "count": 2}},
    ]
