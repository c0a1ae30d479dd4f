"""Usage from a request to the database, through a whole gateway: nothing is lost on SIGTERM, and after a kill it is booked later."""

import asyncio
import csv
import os
import signal
import time
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.cli import app
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tests.command_line import Commands
from tests.e2e.test_serve import ask, serving
from tests.replicas import Tenancy
from tests.timing import HANG_S, hang_s

BY = ("tenant", "project", "key", "model")


def exported(home: Path) -> dict[str, int]:
    """All usage, added up by what `tidegate usage export` writes."""
    where = ("-c", str(home / "tidegate.yaml"), "-o", str(home / "usage.csv"))
    done = Commands().invoke(app, ["usage", "export", "--by", ",".join(BY), *where])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((home / "usage.csv").open(newline="")))
    return {name: sum(int(row[name]) for row in rows) for name in ("requests", "prompt_tokens", "completion_tokens")}


def logged(lines: Iterable[dict[str, object]]) -> dict[str, int]:
    """The same from the access log."""
    mine = [line for line in lines if line.get("closing")]
    tokens = {name: sum(int(str(line.get(name, 0))) for line in mine) for name in ("prompt_tokens", "completion_tokens")}
    return {"requests": len(mine), **tokens}


async def burst(url: str, headers: dict[str, str], count: int) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        replies = await asyncio.gather(
            *(
                client.post(f"{url}/v1/chat/completions", json=ask(stream=bool(n % 2), max_tokens=1 + n % 5), headers=headers)
                for n in range(count)
            )
        )
        assert {reply.status_code for reply in replies} == {200}
        assert (await client.post(f"{url}/v1/chat/completions", json=ask(model="nope"), headers=headers)).status_code == 404


@pytest.mark.fault("SIGTERM")
@pytest.mark.req("R21")
@pytest.mark.req("R9")
async def test_after_sigterm_the_ledger_is_complete(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url, workers=2) as served:
        await burst(served.url, served.headers, 40)
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            spend = (await client.get(f"{served.url}/v1/key", headers=served.headers)).json()["spend"]
        assert (spend["tenant_usd"], spend["key_usd"]) == ("0.00", "0.00"), "the model has no price, and the ledger is asked"
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 0
        truth = logged(served.log_lines())
    assert truth["requests"] == 40
    assert await asyncio.to_thread(exported, tmp_path) == truth
    assert not [path for path in (tmp_path / "tidegate-ledger").iterdir() if path.is_dir()]


@pytest.mark.slow
@pytest.mark.req("R9")
async def test_what_a_killed_worker_had_written_is_booked_by_its_successor(tmp_path: Path) -> None:
    priced = Tenancy((), prices=[Price("p", "sim", ANY_REVISION, 0.0, TokenRates(output=10**12))])  # a thousandth of a dollar a token
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url, tenancy=priced) as served:
        await burst(served.url, served.headers, 30)
        await asyncio.sleep(1.0)  # twenty times the interval that a crash may cost
        (directory,) = [path for path in (tmp_path / "tidegate-ledger").iterdir() if path.is_dir()]
        os.kill(int(directory.name.partition("-")[0]), signal.SIGKILL)
        deadline = time.monotonic() + hang_s()
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            while directory.exists():
                assert time.monotonic() < deadline, "nobody adopted it"
                await asyncio.sleep(0.1)
            while (await client.get(f"{served.admin}/readyz")).status_code != 200:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            text = (await client.get(f"{served.admin}/metrics")).text
            spend = (await client.get(f"{served.url}/v1/key", headers=served.headers)).json()["spend"]
        assert "tidegate_ledger_database_up 1.0" in text
        assert 'tidegate_ledger_booked_total{state="booked"} 30.0' in text
        cost = Decimal(sum(int(str(line.get("completion_tokens", 0))) for line in served.log_lines() if line.get("closing"))) / 1000
        assert Decimal(spend["key_usd"]) == Decimal(spend["tenant_usd"]) == cost > 0, "the caller is told what was booked"
        await burst(served.url, served.headers, 5)
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 0
    assert (await asyncio.to_thread(exported, tmp_path))["requests"] == 35
