"""`/v1/batches` through a whole gateway, whose worker runs them in front of simulated engines."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec import structs

from backends.simengine import SimEngine, SimSettings
from domain.batches import LineResult
from gateway.batches.runner import run_batches
from gateway.batches.slots import LineSlots, RunnerParts
from gateway.files.cleaning import clean
from gateway.files.service import FileService
from gateway.record import Record
from gateway.request.holds import OpenHolds
from tenancy.prices import Price, TokenRates
from tests.gateway_harness import Gateway, gateway
from tests.stored_files import file_service
from tests.timing import until

PRICES = [Price("p1", "sim", "*", 0.0, TokenRates(1_000_000_000, 1_000_000_000, 3_000_000_000, 3_000_000_000))]
OVER = ("completed", "failed", "expired", "cancelled")


@dataclass
class Site:
    """A gateway with a runner, and what the runner has told."""

    gateway: Gateway
    service: FileService
    engine: SimEngine
    noted: list[Record] = field(default_factory=list)
    booked: list[Record] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    """What the metrics are told of lines."""

    def client(self, tenant: str = "acme") -> httpx.AsyncClient:
        return self.gateway.client(tenant)

    def parts(self, owner: str = "worker-a", **values: Any) -> RunnerParts:
        async def durable() -> None:
            pass

        usual = {"lease_s": 5.0, "price_percent": 50, "durable": durable, "draining": lambda: False, "count": self._count}
        told = {"note": self.noted.append, "book": self.booked.append, "holds": OpenHolds(self.gateway.deps.clock)}
        return RunnerParts(**{"deps": self.gateway.deps, "owner": owner, **usual, **told, **values})

    def _count(self, outcome: str, lines: int) -> None:
        self.counted[outcome] += lines

    @asynccontextmanager
    async def running(self, most: int = 4, share: float = 1.0, **values: Any) -> AsyncIterator[None]:
        """A runner beside the test."""
        parts = self.parts(**values)
        runner = asyncio.create_task(run_batches(self.service, parts, LineSlots(most, share, parts.deps), 0.01))
        try:
            yield
        finally:
            runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runner


@asynccontextmanager
async def site(
    folder: Path, *, settings: SimSettings | None = None, bounds: dict[str, Any] | None = None, cap: int | None = None
) -> AsyncIterator[Site]:
    usual = SimSettings(models=("sim",), speed=50.0)
    async with SimEngine(settings or usual) as engine, file_service(folder, **(bounds or {})) as service:
        backends = [{"id": "e0", "url": engine.url, **({"max_in_flight": cap} if cap else {})}]
        async with gateway(engine.url, files=service, pool={"backends": backends}, prices=PRICES) as made:
            yield Site(made, service, engine)


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    chat = {"model": "sim", "messages": [{"role": "user", "content": f"say {custom_id}"}], "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": chat}


async def created(client: httpx.AsyncClient, lines: Iterable[dict[str, Any] | str], **values: Any) -> dict[str, Any]:
    data = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines).encode()
    file = await client.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"})
    asked = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", **values}
    answer = await client.post("/v1/batches", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ended(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = {}

    async def is_over() -> bool:
        shown.update((await client.get(f"/v1/batches/{batch_id}")).json())
        return shown["status"] in OVER

    while not await is_over():
        await asyncio.sleep(0.02)
    return shown


async def output(client: httpx.AsyncClient, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    answer = await client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200
    return [json.loads(one) for one in answer.text.splitlines()]


async def test_a_batch_answers_each_line_once(tmp_path: Path) -> None:
    async with site(tmp_path) as it, it.client() as client, it.client("bolt") as bolt:
        batch = await created(client, [line(f"l{at}") for at in range(12)], metadata={"job": "nightly"})
        assert (batch["status"], batch["metadata"], batch["request_counts"]["total"]) == ("validating", {"job": "nightly"}, 0)
        async with it.running():
            done = await ended(client, batch["id"])
        assert (done["status"], done["model"], done["errors"], done["error_file_id"]) == ("completed", "sim", None, None)
        assert done["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        lines = await output(client, done["output_file_id"])
        assert [one["custom_id"] for one in lines] == [f"l{at}" for at in range(12)]
        assert {(one["response"]["status_code"], one["error"]) for one in lines} == {(200, None)}
        assert all(one["response"]["body"]["choices"][0]["message"]["content"] for one in lines)
        assert done["usage"]["output_tokens"] == sum(one["response"]["body"]["usage"]["completion_tokens"] for one in lines)
        assert len({one["id"] for one in lines}) == 12
        assert {record.priority_class for record in it.noted} == {"batch"}
        assert sorted(record.gateway_id for record in it.noted) == sorted(one["response"]["request_id"] for one in lines)
        file = (await client.get(f"/v1/files/{done['output_file_id']}")).json()
        assert (file["purpose"], file["bytes"]) == (
            "batch_output",
            len("".join(f"{json.dumps(one, separators=(',', ':'))}\n" for one in lines)),
        )
        assert (await bolt.get(f"/v1/batches/{batch['id']}")).status_code == 404
        assert (await bolt.post(f"/v1/batches/{batch['id']}/cancel")).status_code == 404
        assert [one["id"] for one in (await client.get("/v1/batches")).json()["data"]] == [batch["id"]]
        assert it.gateway.open_holds == 0


async def test_lines_that_are_refused_stand_in_the_error_file(tmp_path: Path) -> None:
    async with site(tmp_path) as it, it.client() as client:
        batch = await created(client, [line("good"), line("bad", max_tokens=-1), line("worse", messages="x")])
        async with it.running():
            done = await ended(client, batch["id"])
        assert (done["status"], done["request_counts"]) == ("completed", {"total": 3, "completed": 1, "failed": 2})
        assert [one["custom_id"] for one in await output(client, done["output_file_id"])] == ["good"]
        errors = await output(client, done["error_file_id"])
        assert [(one["custom_id"], one["response"]["status_code"], one["error"]) for one in errors] == [
            ("bad", 400, None),
            ("worse", 400, None),
        ]
        assert errors[0]["response"]["body"]["error"]["param"] == "max_tokens"
        assert it.counted == {"succeeded": 1, "failed": 2}


async def test_a_file_with_mistakes_fails_and_calls_no_engine(tmp_path: Path) -> None:
    wrong = [line("a"), line("a"), "{", {**line("b"), "url": "/v1/embeddings"}, line("c", model="another"), line("d", stream=True)]
    async with site(tmp_path) as it, it.client() as client:
        batch = await created(client, wrong)
        async with it.running():
            done = await ended(client, batch["id"])
        assert (done["status"], done["output_file_id"], done["failed_at"] is not None) == ("failed", None, True)
        assert [(one["line"], one["code"]) for one in done["errors"]["data"]] == [
            (2, "duplicate_custom_id"),
            (3, "invalid_json_line"),
            (4, "mismatched_url"),
            (5, "mismatched_model"),
            (6, "invalid_stream"),
        ]
        assert it.noted == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"input_file_id": "file-nobody"}, "input_file_id"),
    ],
    ids=["endpoint", "window", "metadata", "file"],
)
async def test_batches_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], param: str) -> None:
    async with site(tmp_path) as it, it.client() as client:
        file = await client.post("/v1/files", files={"file": ("in.jsonl", b"x")}, data={"purpose": "batch"})
        asked = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
        answer = await client.post("/v1/batches", json=asked)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "input_file_id" else 400, param)


async def test_no_result_is_written_before_its_row_of_the_ledger_is_durable(tmp_path: Path) -> None:
    """A line with a result is never sent again, so a row that dies with its worker would be lost for good."""
    async with site(tmp_path, settings=SimSettings(models=("sim",), speed=5.0)) as it, it.client() as client:
        on_disk, noted, batches = 0, 0, it.service.batches
        assert batches is not None
        note = batches.note

        async def durable() -> None:
            nonlocal on_disk
            appended = len(it.booked)
            await asyncio.sleep(0.02)  # as the disk takes its time, and other lines come meanwhile
            on_disk = max(on_disk, appended)

        async def noting(batch_id: str, owner: str, results: Sequence[LineResult]) -> None:
            nonlocal noted
            noted += len(results)
            assert noted <= on_disk
            await note(batch_id, owner, results)

        batches.note = noting  # type: ignore[method-assign]
        batch = await created(client, [line(f"l{at}", max_tokens=1 + at % 7) for at in range(40)])
        async with it.running(most=6, durable=durable):
            done = await ended(client, batch["id"])
        assert (done["status"], noted) == ("completed", 40)


async def test_a_tenant_has_so_many_open_batches(tmp_path: Path) -> None:
    async with site(tmp_path, bounds={"max_open_batches": 1}) as it, it.client() as client, it.client("bolt") as bolt:
        first = await created(client, [line("a")])
        asked = {key: first[key] for key in ("input_file_id", "endpoint", "completion_window")}
        refused = await client.post("/v1/batches", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        await created(bolt, [line("a")])
        async with it.running():
            await ended(client, first["id"])
        assert (await client.post("/v1/batches", json=asked)).status_code == 200


async def test_a_cancelled_batch_keeps_what_it_has(tmp_path: Path) -> None:
    async with site(tmp_path, settings=SimSettings(models=("sim",), speed=1.0)) as it, it.client() as client:
        batch = await created(client, [line(f"l{at}") for at in range(60)])
        async with it.running(most=2, lease_s=0.3):
            await until(lambda: len(it.booked) >= 3)
            cancelling = await client.post(f"/v1/batches/{batch['id']}/cancel")
            assert cancelling.json()["status"] == "cancelling"
            done = await ended(client, batch["id"])
        assert done["status"] == "cancelled" and done["cancelled_at"] >= done["cancelling_at"]
        counts = done["request_counts"]
        assert counts["completed"] >= 3 and counts["completed"] + counts["failed"] == counts["total"] == 60
        answered, errors = await output(client, done["output_file_id"]), await output(client, done["error_file_id"])
        assert len(answered) == counts["completed"] == len(it.booked)
        assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}
        assert it.counted == {"succeeded": counts["completed"], "cancelled": counts["failed"]}
        assert sorted(one["custom_id"] for one in answered + errors) == sorted(f"l{at}" for at in range(60))
        again = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert (again.status_code, (await client.get(f"/v1/batches/{batch['id']}")).json()) == (200, done)


async def test_a_batch_expires_with_its_window(tmp_path: Path) -> None:
    async with site(tmp_path) as it, it.client() as client:
        batch = await created(client, [line("a"), line("b")])
        book = it.service.batches
        assert book is not None
        found = await book.take("worker-x", 2e12, 0.0)
        assert found is not None
        assert await book.write(structs.replace(found, expires_unix=1.0), "worker-x", "validating")
        async with it.running():
            done = await ended(client, batch["id"])
        assert (done["status"], done["request_counts"]) == ("expired", {"total": 2, "completed": 0, "failed": 2})
        assert {one["error"]["code"] for one in await output(client, done["error_file_id"])} == {"batch_expired"}
        assert it.noted == []
        assert it.counted == {"expired": 2}


async def test_a_worker_that_ends_leaves_the_rest_to_another_one(tmp_path: Path) -> None:
    """The short form of the test with killed processes."""
    count, most = 40, 3
    async with site(tmp_path, settings=SimSettings(models=("sim",), speed=2.0)) as it, it.client() as client:
        batch = await created(client, [line(f"l{at:02}") for at in range(count)])
        for owner in ("worker-a", "worker-b"):
            seen = len(it.booked)
            async with it.running(most=most, owner=owner):
                await until(lambda seen=seen: len(it.booked) >= seen + 5)
        async with it.running(most=most, owner="worker-c"):
            done = await ended(client, batch["id"])
        assert done["request_counts"] == {"total": count, "completed": count, "failed": 0}
        assert [one["custom_id"] for one in await output(client, done["output_file_id"])] == [f"l{at:02}" for at in range(count)]
        booked = Counter(record.engine_request_id for record in it.booked)
        assert len(booked) == count, "lines that were sent again have the same row of the ledger"
        assert len({record.at_unix for record in it.booked}) == 1
        assert sum(booked.values()) <= count + 2 * most


async def test_lines_cost_a_part_of_the_price(tmp_path: Path) -> None:
    async with site(tmp_path) as it, it.client() as client:
        whole = await client.post("/v1/chat/completions", json=line("a")["body"])
        assert whole.status_code == 200
        batch = await created(client, [line("a")])
        async with it.running():
            await ended(client, batch["id"])
        full = next(record for record in it.gateway.records if record.endpoint == "/v1/chat/completions")
        assert it.booked[0].usage == full.usage
        assert 0 < 2 * it.booked[0].cost_nanousd == full.cost_nanousd
        assert (it.booked[0].key_id, it.booked[0].tenant) == (full.key_id, "acme")


async def test_lines_wait_while_others_use_the_room(tmp_path: Path) -> None:
    async with site(tmp_path, cap=4) as it, it.client() as client:
        deps = it.gateway.deps
        table = deps.pool_states["chat"].load_table
        charges = [table.charge("e0", 10, 10, deps.clock()) for _ in range(2)]
        batch = await created(client, [line("a"), line("b")])
        async with it.running(share=0.5):
            await asyncio.sleep(0.3)
            assert it.noted == []
            table.release(charges.pop())
            done = await ended(client, batch["id"])
        assert done["status"] == "completed"
        table.release(charges.pop())


async def test_lines_with_the_same_prompt_follow_each_other(tmp_path: Path) -> None:
    prompts = ["You are a judge. " * 20, "You are a poet. " * 20, "You are a cook. " * 20]
    lines = [
        line(f"l{at}", messages=[{"role": "system", "content": prompts[at % 3]}, {"role": "user", "content": f"{at}"}]) for at in range(12)
    ]
    async with site(tmp_path) as it, it.client() as client:
        batch = await created(client, lines)
        async with it.running(most=1):
            done = await ended(client, batch["id"])
        by_request = {one["response"]["request_id"]: int(one["custom_id"][1:]) % 3 for one in await output(client, done["output_file_id"])}
        order = [by_request[record.gateway_id] for record in it.noted]
        assert sum(first != second for first, second in pairwise(order)) == 2


async def test_a_key_that_is_gone_sends_no_line(tmp_path: Path) -> None:
    async with site(tmp_path) as it, it.client() as client:
        batch = await created(client, [line("a")])
        book = it.service.batches
        assert book is not None
        found = await book.take("worker-x", 2e12, 0.0)
        assert found is not None
        revoked = structs.replace(found, caller=structs.replace(found.caller, key_id="tg_nobody"))
        assert await book.write(revoked, "worker-x", "validating")
        async with it.running():
            done = await ended(client, batch["id"])
        assert [one["response"]["status_code"] for one in await output(client, done["error_file_id"])] == [401]
        assert it.booked[0].closing == "", "nothing is booked for it"


async def test_the_official_client_needs_no_change(tmp_path: Path) -> None:
    async with site(tmp_path) as it, it.running():
        async with openai.AsyncOpenAI(base_url=f"{it.gateway.url}/v1", api_key=it.gateway.keys["acme"], max_retries=0) as client:
            data = b"".join(json.dumps(line(f"l{at}")).encode() + b"\n" for at in range(6))
            file = await client.files.create(
                file=("in.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
            )
            assert (await client.files.retrieve(file.id)).expires_at == file.created_at + 3600
            upload = await client.uploads.upload_file_chunked(
                file=data, filename="up.jsonl", bytes=len(data), mime_type="text/jsonl", purpose="batch", part_size=100
            )
            assert upload.status == "completed" and upload.file is not None
            assert (await client.files.content(upload.file.id)).content == data
            assert {one.id async for one in client.files.list(limit=1)} == {file.id, upload.file.id}
            for input_file in (file.id, upload.file.id):
                batch = await client.batches.create(
                    input_file_id=input_file, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
                )
                while (batch := await client.batches.retrieve(batch.id)).status not in OVER:
                    await asyncio.sleep(0.02)
                assert batch.status == "completed" and batch.request_counts is not None and batch.request_counts.completed == 6
                assert batch.output_file_id is not None
                assert len((await client.files.content(batch.output_file_id)).text.splitlines()) == 6
            assert len([one async for one in client.batches.list(limit=1)]) == 2
            assert (await client.files.delete(file.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve(file.id)
            with pytest.raises(openai.BadRequestError):
                await client.batches.cancel(batch.id)


async def test_a_batch_whose_input_is_deleted_keeps_what_it_has(tmp_path: Path) -> None:
    async with site(tmp_path, settings=SimSettings(models=("sim",), speed=1.0)) as it, it.client() as client:
        batch = await created(client, [line(f"l{at}") for at in range(60)])
        async with it.running(most=2):
            await until(lambda: len(it.booked) >= 3)
            await client.delete(f"/v1/files/{batch['input_file_id']}")
            await clean(it.service, it.gateway.deps.wall())
            done = await ended(client, batch["id"])
        assert (done["status"], [one["code"] for one in done["errors"]["data"]]) == ("failed", ["input_file_not_found"])
        counts = done["request_counts"]
        assert 3 <= counts["completed"] == len(await output(client, done["output_file_id"])) < counts["total"] == 60


async def test_lines_may_be_responses(tmp_path: Path) -> None:
    async with site(tmp_path) as made, made.client() as client:
        lines = [
            {
                "custom_id": name,
                "method": "POST",
                "url": "/v1/responses",
                "body": {"model": "sim", "input": f"say {name}", "max_output_tokens": 4},
            }
            for name in ("a", "b")
        ]
        wrong = {**lines[0], "custom_id": "c", "body": {"model": "sim", "input": [], "max_output_tokens": 4}}
        nobody_waits = {**lines[0], "custom_id": "d", "body": {"model": "sim", "input": "d", "background": True}}
        batch = await created(client, [*lines, wrong, nobody_waits], endpoint="/v1/responses")
        async with made.running():
            shown = await ended(client, batch["id"])
        assert (shown["status"], shown["request_counts"]) == ("completed", {"total": 4, "completed": 2, "failed": 2})
        answers = await output(client, shown["output_file_id"])
        assert [answer["response"]["body"]["object"] for answer in answers] == ["response"] * 2
        assert {answer["response"]["body"]["usage"]["output_tokens"] for answer in answers} == {4}
        errors = await output(client, shown["error_file_id"])
        assert {error["custom_id"]: error["response"]["body"]["error"]["param"] for error in errors} == {"c": "input", "d": "background"}
        assert {record.endpoint for record in made.booked} == {"/v1/responses"}
