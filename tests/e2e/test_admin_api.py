"""The admin API of a whole gateway, by command: a tenant, keys with roles, limits, and the audit of all that."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine
from tests.e2e.test_backend_commands import SIM
from tests.e2e.test_serve import Served, serving
from tests.issuer import claims_of, issuer, signer
from tests.timing import HANG_S, timely

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md"
ADDRESS = "http://127.0.0.1:8081"
EXAMPLES_DO = ["tenant.create", "key.create", "key.create", "limit.set", "limit.set", "limit.raise", "price.set", "tenant.change"]
TOKEN = "an-admin-token-of-32-characters!"


@asynccontextmanager
async def governed(home: Path, url: str, more: str = "") -> AsyncIterator[Served]:
    """A gateway with a bootstrap token."""
    (home / "token").write_text(TOKEN)
    async with serving(home, url, more="secrets: {admin_token: {file: token}}\n" + more) as served:
        yield served


def command(served: Served, *arguments: str, token: str = TOKEN) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments, "--admin", served.admin],
        env={"PATH": "/usr/bin", "TIDEGATE_ADMIN_TOKEN": token, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


async def status_within(client: httpx.AsyncClient, url: str, headers: dict[str, str], wanted: int, seconds: float) -> float:
    """How long it took until the answer was `wanted`."""
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        while (await client.get(url, headers=headers)).status_code != wanted:
            await asyncio.sleep(0.1)
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.req("R34")
async def test_keys_with_roles_come_and_go_within_five_seconds(tmp_path: Path) -> None:
    run = asyncio.to_thread
    async with (
        SimEngine(SIM) as engine,
        governed(tmp_path, engine.url) as served,
        httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):
        assert (await run(command, served, "tenant", "create", "globex")).returncode == 0
        made = await run(command, served, "key", "create", "--tenant", "globex", "--role", "auditor", "--json")
        key = json.loads(made.stdout)
        holder = {"authorization": f"Bearer {key['key']}"}
        timely(await status_within(client, f"{served.admin}/admin/v1/self", holder, 200, HANG_S), 5.0)
        assert (await client.post(f"{served.admin}/admin/v1/tenants", headers=holder)).status_code == 403
        data_key = json.loads((await run(command, served, "key", "create", "--tenant", "globex", "--json")).stdout)
        models = f"{served.url}/v1/models"
        bearer = {"authorization": f"Bearer {data_key['key']}"}
        timely(await status_within(client, models, bearer, 200, HANG_S), 5.0)

        assert (await run(command, served, "limit", "set", "tenant:globex:requests:minute", "600")).returncode == 0
        raised = await run(command, served, "limit", "raise", "tenant:globex:requests:minute", "900", "--for", "30m")
        assert "is 900 for 30m, and 600 afterwards" in raised.stdout, raised.stderr
        listed = json.loads((await run(command, served, "limit", "list", "--json")).stdout)
        assert [(one["id"], one["amount"], one["raised_to"]) for one in listed] == [("tenant:globex:requests:minute", 600, 900)]

        for ended, url, who in ((key["id"], f"{served.admin}/admin/v1/self", holder), (data_key["id"], models, bearer)):
            assert (await run(command, served, "key", "revoke", ended, "--tenant", "globex", "--yes")).returncode == 0
            timely(await status_within(client, url, who, 401, HANG_S), 5.0)

        deleted = await run(command, served, "tenant", "delete", "globex")
        assert deleted.returncode == 1, "nobody said yes"
        assert (await run(command, served, "tenant", "delete", "globex", "--yes")).returncode == 0
        verified = await run(command, served, "audit", "verify")
        assert "unbroken" in verified.stdout
        actions = [row["action"] for row in json.loads((await run(command, served, "audit", "list", "--json")).stdout)]
        assert actions[:8] == [
            "tenant.delete", "key.revoke", "key.revoke", "limit.raise", "limit.set", "key.create", "key.create", "tenant.create",
        ]  # fmt: skip
        assert actions[8:], "what was made straight on the store before the start is in the same chain"
        log = (tmp_path / "err.log").read_text()
        for secret in (TOKEN, key["key"].rpartition("_")[2], data_key["key"].rpartition("_")[2]):
            assert secret not in log


CURL = """\
#!{python}
# as much of curl as the page uses
import http.client, sys, urllib.parse
wanted, headers, method, data, url, head, quiet = iter(sys.argv[1:]), dict(), None, None, "", False, False
for word in wanted:
    if word == "-H":
        name, _, value = next(wanted).partition(":")
        headers[name.strip()] = value.strip()
    elif word == "-X":
        method = next(wanted)
    elif word == "-d":
        data = next(wanted).encode()
    elif word == "-o":
        quiet = next(wanted) == "/dev/null"
    elif word == "-D":
        head = next(wanted) == "-"
    elif word.startswith("http"):
        url = urllib.parse.urlsplit(word)
    elif word not in ("-sS", "--fail-with-body"):
        sys.exit("the page uses more of curl than the test knows: " + word)
connection = http.client.HTTPConnection(url.netloc, timeout=30)
connection.request(method or ("GET" if data is None else "POST"), url.path + ("?" + url.query if url.query else ""), data, headers)
reply = connection.getresponse()
if head:
    sys.stdout.write("".join(name.lower() + ": " + value + "\\r\\n" for name, value in reply.getheaders()))
if not quiet:
    sys.stdout.write(reply.read().decode())
sys.exit(22 if reply.status >= 400 else 0)
"""
"""Stands in where there is no curl, so that the page is tested everywhere."""


@pytest.mark.slow
@pytest.mark.parametrize("client", ["stand-in", *(["curl"] if shutil.which("curl") else [])])
async def test_the_examples_of_the_page_work_as_they_stand(client: str, tmp_path: Path) -> None:
    """In their order, in one shell, with the address of this gateway: the page says that it is what one puts in."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if client == "stand-in":
        (programs / "curl").write_text(CURL.replace("{python}", sys.executable))
        (programs / "curl").chmod(0o755)
    section = PAGE.read_text().partition("\n## Examples\n")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    async with SimEngine(SIM) as engine, governed(tmp_path, engine.url, 'stores: {counters: "valkey+embedded://"}\n') as served:
        assert script.count(ADDRESS) == 1
        examples = tmp_path / "examples.sh"
        examples.write_text("set -euo pipefail\n" + script.replace(ADDRESS, served.admin))
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-x", str(examples)],
            env={"PATH": f"{programs}:{os.environ['PATH']}", "TIDEGATE_ADMIN_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        listed = json.loads((await asyncio.to_thread(command, served, "audit", "list", "--json")).stdout)
        actions = [row["action"] for row in reversed(listed) if row["actor"] == "bootstrap"]
        assert actions == EXAMPLES_DO
        assert '"label":"Globex Corp."' in done.stdout
        assert '"amount":1200' in done.stdout, "the raise is in force"


@pytest.mark.slow
@pytest.mark.parametrize("counters", ["memory://", "valkey+embedded://"])
async def test_how_limits_stand_is_asked_of_the_counters(tmp_path: Path, counters: str) -> None:
    run = asyncio.to_thread
    async with SimEngine(SIM) as engine, governed(tmp_path, engine.url, f'stores: {{counters: "{counters}"}}\n') as served:
        assert (await run(command, served, "limit", "set", "tenant:acme:tokens:day", "1000")).returncode == 0
        seen = await run(command, served, "limit", "state", "acme", "--json")
        (state,) = json.loads(seen.stdout)
        assert (state["id"], state["amount"], state["used"], state["remaining"]) == ("tenant:acme:tokens:day", 1000, 0, 1000)


@pytest.mark.slow
@pytest.mark.req("R14")
async def test_tokens_of_an_identity_provider_administer_with_the_roles_the_settings_give_them(tmp_path: Path) -> None:
    one = signer("k1")
    async with issuer(one) as idp, SimEngine(SIM) as engine:
        roles = {"claim": ["groups"], "map": {"llm-team": "tenant-admin", "llm-auditors": "auditor"}}
        entry = {"issuer": idp.url, "audiences": ["tidegate"], "tenant": {"claim": ["tenant"]}, "roles": roles}
        async with (
            serving(tmp_path, engine.url, more=f"auth: {json.dumps({'jwt': [entry]})}\n") as served,
            httpx.AsyncClient(trust_env=False, base_url=f"{served.admin}/admin/v1", timeout=HANG_S) as client,
        ):

            def bearer(*groups: str) -> dict[str, str]:
                return {"authorization": "Bearer " + one.token(**claims_of(time.time()) | {"iss": idp.url}, groups=list(groups))}

            mine, theirs = bearer("llm-team"), bearer("llm-auditors")
            await status_within(client, "/self", mine, 200, HANG_S)
            told = (await client.get("/self", headers=mine)).json()
            assert (told["actor"][:4], told["roles"], told["tenant"]) == ("jwt:", ["tenant-admin"], "acme")
            assert (await client.post("/tenants/acme/projects", json={"name": "web"}, headers=mine)).status_code == 201
            assert (await client.get("/tenants/globex", headers=mine)).status_code == 404
            assert (await client.post("/tenants", json={"name": "globex"}, headers=mine)).status_code == 403
            assert (await client.post("/tenants/acme/projects", json={"name": "api"}, headers=theirs)).status_code == 403
            (row, *_) = (await client.get("/audit", headers=theirs)).json()["items"]
            assert (row["actor"], row["role"], row["action"]) == (told["actor"], "tenant-admin", "project.create")
            for nobody in (bearer("somebody"), bearer(), {"authorization": "Bearer a.b.c"}):
                assert (await client.get("/self", headers=nobody)).status_code == 401


@pytest.mark.slow
async def test_organisations_projects_and_prices_by_command(tmp_path: Path) -> None:
    async with (
        SimEngine(SIM) as engine,
        governed(tmp_path, engine.url) as served,
        httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):

        async def run(*arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
            done = await asyncio.to_thread(command, served, *arguments)
            assert done.returncode == code, (arguments, done.stdout, done.stderr)
            return done

        async def listed(*arguments: str) -> list[dict[str, object]]:
            found: list[dict[str, object]] = json.loads((await run(*arguments, "--json")).stdout)
            return found

        await run("org", "create", "north", "--label", "North")
        await run("tenant", "set", "acme", "--org", "north")
        assert [one["name"] for one in await listed("org", "list")] == ["default", "north"]
        assert json.loads((await run("tenant", "show", "acme", "--json")).stdout)["organisation"] == "north"
        assert "It cannot be removed" in (await run("org", "delete", "north", "--yes", code=1)).stderr
        models = f"{served.url}/v1/models"
        assert (await client.get(models, headers=served.headers)).status_code == 200
        await run("org", "disable", "north")
        timely(await status_within(client, models, served.headers, 401, HANG_S), 5.0)
        await run("org", "enable", "north")
        await status_within(client, models, served.headers, 200, HANG_S)

        await run("project", "create", "web", "--tenant", "acme", "--label", "Web")
        assert "Web" in (await run("project", "list", "--tenant", "acme")).stdout
        await run("project", "disable", "default", "--tenant", "acme")
        timely(await status_within(client, models, served.headers, 401, HANG_S), 5.0)
        await run("project", "enable", "default", "--tenant", "acme")
        await status_within(client, models, served.headers, 200, HANG_S)
        assert "exists already" in (await run("project", "create", "web", "--tenant", "acme", code=1)).stderr
        await run("project", "delete", "web", "--tenant", "acme", "--yes")
        assert [one["name"] for one in await listed("project", "list", "--tenant", "acme")] == ["default"]

        await run("price", "set", "sim", "--input", "0.25", "--cached-input", "$0.025", "--output", "1")
        (price,) = await listed("price", "list", "--model", "sim")
        assert price["nanousd_per_mtok"] == {
            "uncached_input": 250_000_000, "cached_input": 25_000_000, "output": 10**9, "reasoning": 10**9,
        }  # fmt: skip
        assert "$1.00" in (await run("price", "list")).stdout
        assert (
            "--input: 'cheap' is no amount of dollars"
            in (await run("price", "set", "sim", "--input", "cheap", "--output", "$1", code=2)).stderr
        )
        body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        async with asyncio.timeout(HANG_S):  # the price reaches the worker, and what it costs the ledger, a moment later
            cost = 0
            while not cost:
                assert (await client.post(f"{served.url}/v1/chat/completions", json=body, headers=served.headers)).status_code == 200
                cost = sum(int(str(row["cost_nanousd"])) for row in await listed("usage", "show", "--by", "model"))


@pytest.mark.slow
async def test_how_limits_stand_is_watched(tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, governed(tmp_path, engine.url, 'stores: {counters: "valkey+embedded://"}\n') as served:
        done = await asyncio.to_thread(command, served, "limit", "set", "tenant:acme:requests:day", "1000")
        assert done.returncode == 0, done.stderr
        environ = {"PATH": "/usr/bin", "TIDEGATE_ADMIN_TOKEN": TOKEN}
        arguments = ("limit", "state", "acme", "--watch", "--every", "200ms", "--json", "--admin", served.admin)
        watching = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert watching.stdout is not None
        try:
            async with asyncio.timeout(HANG_S), httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
                body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
                used = 0
                while used < 3:
                    (state,) = json.loads(await watching.stdout.readline())
                    assert (state["id"], state["amount"], state["remaining"]) == ("tenant:acme:requests:day", 1000, 1000 - state["used"])
                    assert state["used"] >= used
                    used = state["used"]
                    await client.post(f"{served.url}/v1/chat/completions", json=body, headers=served.headers)
                watching.send_signal(signal.SIGINT)
                assert await watching.wait() == 0
        finally:
            if watching.returncode is None:
                watching.kill()


@pytest.mark.slow
async def test_watched_through_a_pipe_every_look_is_printed_as_it_is_taken(tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, governed(tmp_path, engine.url, 'stores: {counters: "valkey+embedded://"}\n') as served:
        done = await asyncio.to_thread(command, served, "limit", "set", "tenant:acme:requests:day", "1000")
        assert done.returncode == 0, done.stderr
        environ = {"PATH": "/usr/bin", "TIDEGATE_ADMIN_TOKEN": TOKEN, "COLUMNS": "120"}
        arguments = ("limit", "state", "acme", "--watch", "--every", "200ms", "--admin", served.admin)
        watching = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *arguments, env=environ, stdout=asyncio.subprocess.PIPE
        )
        assert watching.stdout is not None
        try:
            frames = 0
            async with asyncio.timeout(60):
                while frames < 3:
                    line = await watching.stdout.readline()
                    assert line, "it goes on until it is interrupted"
                    assert b"\x1b" not in line, "plain, for files and other programs"
                    frames += b"tenant:acme:requests:day" in line
                watching.send_signal(signal.SIGINT)
                assert await watching.wait() == 0
        finally:
            if watching.returncode is None:
                watching.kill()
