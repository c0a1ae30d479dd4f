"""The console in a real browser over a real gateway: signing in, what a role sees, live values, and a page that anybody can use."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, expect

from backends.simengine import SimEngine
from tests.browser import NARROW, PICTURES, WIDE, chromium, console_page, findings, overflows, screenshot, show, sign_in, signed_in
from tests.e2e.test_admin_api import TOKEN, command, governed, status_within
from tests.e2e.test_backend_commands import SIM
from tests.e2e.test_serve import Served
from tests.timing import HANG_S

pytestmark = pytest.mark.browser

PAGES = ("Fleet", "Requests", "Overload", "Gateway")


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[tuple[Served, Browser]]:
    """A gateway with one engine, and a browser."""
    async with SimEngine(SIM) as engine, governed(home, engine.url) as served, chromium() as browser:
        yield served, browser


async def key_with(served: Served, role: str, tenant: str = "acme") -> dict[str, Any]:
    done = await asyncio.to_thread(command, served, "key", "create", "--tenant", tenant, "--role", role, "--json")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        headers = {"authorization": f"Bearer {made['key']}"}
        await status_within(client, f"{served.admin}/admin/v1/self", headers, 200, HANG_S)
    return made


async def chat(served: Served, count: int = 1) -> None:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 5}
    async with httpx.AsyncClient(base_url=served.url, headers=served.headers, timeout=HANG_S, trust_env=False) as client:
        for _ in range(count):
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_person_signs_in_and_sees_a_request_arrive(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), console_page(browser, served.admin) as page:
        await page.get_by_label("Admin token or key with a role").fill("not-the-token-of-this-gateway")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert").first).to_contain_text("missing or wrong")
        await sign_in(page, TOKEN)
        await expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
        await expect(page.get_by_role("status").get_by_text("live", exact=True)).to_be_visible()
        await expect(page.get_by_role("row", name="e0")).to_contain_text("up")
        await chat(served, 20)
        # the legend tells the last value of each line as text
        await expect(page.get_by_role("group", name="Time to the first token")).to_contain_text("ms", timeout=10_000)
        for _ in range(15 if PICTURES else 0):
            await chat(served, 10)
            await page.wait_for_timeout(500)
        await screenshot(page, "fleet")


GO_AT_ONCE = """() => {
  const seen = new MutationObserver(() => {
    if (![...document.querySelectorAll("button")].some((button) => button.textContent === "Sign out")) return;
    seen.disconnect();
    location.hash = "#/requests";
  });
  seen.observe(document, { childList: true, subtree: true });
}"""
"""Changes the address in the moment in which the frame of the console is drawn."""


async def test_an_address_that_changes_while_the_console_is_drawn_is_followed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), console_page(browser, served.admin) as page:
        await page.evaluate(GO_AT_ONCE)
        await sign_in(page, TOKEN)
        await page.get_by_role("main").get_by_role("heading", level=1, name="Requests", exact=True).wait_for()


async def test_the_slowest_request_of_the_last_minute_and_its_reason_take_three_clicks(tmp_path: Path) -> None:
    faults: list[dict[str, Any]] = [{"name": "slow_start", "delay_s": 2}]
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await chat(served, 5)
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            backends = (await client.get(f"{served.admin}/backends")).json()["backends"]
            for standing in (faults, []):
                set_to = await client.post(f"{backends[0]['url']}/sim/faults", json={"standing": standing})
                assert set_to.status_code == 200
                await chat(served)
        async with httpx.AsyncClient(
            base_url=served.admin, trust_env=False, headers={"authorization": f"Bearer {TOKEN}"}, timeout=HANG_S
        ) as client:

            async def listed() -> bool:
                return len((await client.get("/admin/v1/requests")).json()["items"]) == 7

            while not await listed():
                await asyncio.sleep(0.1)
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Requests").click()
        await page.get_by_role("link", name="Slowest of the last minute").click()
        await page.get_by_role("row").nth(1).get_by_role("button").click()
        await expect(page.get_by_text("First token took 2.0")).to_be_visible()
        await expect(page.get_by_role("heading", name="Routing decision")).to_be_visible()
        assert await findings(page) == []
        await screenshot(page, "request")


@pytest.mark.req("R37")
async def test_what_callers_and_engines_write_stays_text(tmp_path: Path) -> None:
    markup = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        body = {"model": "sim", "user": markup, "messages": [{"role": "user", "content": markup}], "max_tokens": 3}
        headers = {**served.headers, "user-agent": markup, "x-request-id": "caller-1"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=HANG_S, trust_env=False) as client:
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        await show(page, "Requests")
        await page.get_by_role("row").nth(1).get_by_role("button").click()
        await expect(page.get_by_text(markup).first).to_be_visible()
        assert await page.locator("main img").count() == 0


async def test_a_page_loads_nothing_from_elsewhere_and_runs_no_script_of_a_text(tmp_path: Path) -> None:
    blocked = "inline event handler violates"
    async with opened(tmp_path) as (served, browser), console_page(browser, served.admin, meant=blocked) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(urlsplit(request.url).netloc))
        await sign_in(page, TOKEN)
        for name in PAGES:
            await show(page, name)
        assert set(asked) == {urlsplit(served.admin).netloc}
        ran = await page.evaluate(
            "() => { const e = document.createElement('img'); e.setAttribute('onerror', 'window.ran = 1'); e.src = '/console/none';"
            "document.body.append(e); return new Promise((done) => setTimeout(() => done(window.ran ?? 0), 300)) }"
        )
        assert ran == 0
        asked.clear()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_pages_have_no_serious_finding_and_fit_their_window(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    async with opened(tmp_path) as (served, browser):
        async with console_page(browser, served.admin, size, theme) as page:
            await page.get_by_role("heading", name="Sign in").wait_for()
            assert await findings(page) == []
        async with signed_in(browser, served.admin, TOKEN, size, theme) as page:
            await chat(served, 3)
            for name in PAGES:
                await show(page, name)
                await page.get_by_role("main").locator(".panel").first.wait_for()
                assert await findings(page) == [], name
                assert not await overflows(page), name
                await screenshot(page, f"{name.lower()}-{'narrow' if size == NARROW else 'wide'}-{theme}")


async def test_a_role_sees_only_the_pages_of_its_routes(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser):
        own = await key_with(served, "tenant-admin")
        async with signed_in(browser, served.admin, own["key"]) as page:
            links = await page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
            assert links == ["Requests", "Tenants & keys", "Usage & cost", "Cache", "Guards"]
            await page.goto(f"{served.admin}/console/#/fleet")
            await expect(page.get_by_text("There is no such page")).to_be_visible()
            status = await page.evaluate("fetch('/admin/v1/live', {headers: {'x-tidegate-console': '1'}}).then((reply) => reply.status)")
            assert status == 403
        auditor = await key_with(served, "auditor")
        async with signed_in(browser, served.admin, auditor["key"]) as page:
            await page.get_by_role("row", name="e0").wait_for()
            assert await page.get_by_role("button", name="Drain").count() == 0
            await show(page, "Gateway")
            await expect(page.get_by_role("cell", name="worker-0")).to_be_visible()
            assert await page.get_by_role("button", name="Reload settings").count() == 0


async def test_a_revoked_key_is_signed_out_within_seconds(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser):
        made = await key_with(served, "operator")
        async with signed_in(browser, served.admin, made["key"]) as page:
            await show(page, "Gateway")
            done = await asyncio.to_thread(command, served, "key", "revoke", made["id"], "--tenant", "acme", "--yes")
            assert done.returncode == 0, done.stderr
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=20_000)
            await expect(page.get_by_role("status")).to_contain_text("does not count any more")


async def test_a_backend_is_drained_and_resumed_by_keyboard_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        for label, state in (("Drain", "draining"), ("Resume", "up")):
            button = page.get_by_role("row", name="e0").get_by_role("button", name=label)
            await button.focus()
            await page.keyboard.press("Enter")
            dialog = page.get_by_role("dialog")
            await dialog.wait_for()
            await dialog.get_by_role("button", name=label).focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("row", name="e0")).to_contain_text(state, timeout=20_000)
            await expect(dialog).to_be_hidden()


async def test_the_live_values_come_back_after_a_restart_without_signing_in_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        live = page.get_by_role("status").get_by_text("live", exact=True)
        await expect(live).to_be_visible()
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:

            async def admin_pid() -> int:
                shown = await client.get(f"{served.admin}/admin/v1/gateway", headers={"authorization": f"Bearer {TOKEN}"})
                return int(next(process["pid"] for process in shown.json()["processes"] if process["name"] == "admin"))

            os.kill(await admin_pid(), signal.SIGKILL)
            await expect(live).to_be_hidden(timeout=20_000)
            await expect(live).to_be_visible(timeout=30_000)
        await show(page, "Gateway")
        await expect(page.get_by_role("row", name="admin")).to_contain_text("1")


async def test_a_session_counts_only_on_requests_of_the_console_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        cookie = next(one for one in await page.context.cookies() if one.get("name") == "tidegate_session")
        assert cookie.get("httpOnly") is True
        assert cookie.get("sameSite") == "Strict"
        assert await page.evaluate("document.cookie") == ""
        async with httpx.AsyncClient(
            base_url=served.admin, trust_env=False, cookies={"tidegate_session": cookie["value"]}, timeout=HANG_S
        ) as client:
            own = {"x-tidegate-console": "1"}
            foreign = [{}, {**own, "origin": "http://evil.example"}, {**own, "sec-fetch-site": "cross-site"}]
            for headers in foreign:
                assert (await client.get("/admin/v1/self", headers=headers)).status_code == 403, headers
                assert (await client.post("/admin/v1/tenants", headers=headers, json={"name": "stolen"})).status_code == 403, headers
            assert (await client.get("/admin/v1/self", headers={**own, "origin": served.admin})).json()["actor"] == "bootstrap"
