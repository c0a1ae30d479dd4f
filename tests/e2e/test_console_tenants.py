"""The console's pages of tenants, keys, limits and usage in a real browser: a person makes a tenant and a key and calls with it, sees
the gauge of a limit move and the cost of a day, and a role sees and changes what its routes let it."""

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.browser import NARROW, WIDE, findings, overflows, screenshot, show, signed_in
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_console import key_with, opened
from tests.e2e.test_serve import Served
from tests.timing import HANG_S

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
PARTS = ("Keys", "Projects", "Limits", "Budget & cost")


async def run(served: Served, *arguments: str) -> None:
    done = await asyncio.to_thread(command, served, *arguments)
    assert done.returncode == 0, done.stderr


async def chat(served: Served, key: str | None = None, user: str = "", count: int = 1) -> int:
    """The status of the last of so many requests."""
    headers = served.headers if key is None else {"authorization": f"Bearer {key}"}
    body: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5} | (
        {"user": user} if user else {}
    )
    status = 0
    async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=HANG_S, trust_env=False) as client:
        for _ in range(count):
            status = (await client.post("/v1/chat/completions", json=body)).status_code
    return status


async def tab(page: Page, name: str) -> None:
    await page.get_by_role("tab", name=name).click()
    await page.get_by_role("main").get_by_role("heading", level=2).first.wait_for()


async def open_tenant(page: Page, name: str, part: str) -> None:
    await show(page, "Tenants & keys")
    await page.get_by_role("button", name=f"Open {name}", exact=True).click()
    await page.get_by_role("heading", name=name, level=1).wait_for()
    await tab(page, part)


async def test_a_person_makes_a_tenant_and_a_key_that_works_until_it_is_revoked(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Tenants & keys")
        await page.get_by_role("button", name="Create tenant").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("textbox", name="Name 1 to 63").fill("Not A Name")
        await dialog.get_by_label("Label").fill(HOSTILE)
        await dialog.get_by_role("button", name="Create tenant").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("name: must match the pattern")
        # the dialog was drawn anew, and kept what was written
        await dialog.get_by_role("textbox", name="Name 1 to 63").fill("globex")
        await dialog.get_by_role("button", name="Create tenant").click()
        await page.get_by_role("heading", name="globex", level=1).wait_for()
        await expect(page.get_by_text(HOSTILE)).to_be_visible()

        await page.get_by_role("tab", name="Keys").click()
        await page.get_by_role("button", name="Create key").click()
        await dialog.get_by_label("Networks").fill("nowhere")
        await dialog.get_by_label("Label").fill("ci")
        await dialog.get_by_label("Tags").fill("team=search")
        await dialog.get_by_label("Expires").fill("2099-01-01T00:00")
        await dialog.get_by_role("checkbox", name="Role auditor").check()
        await dialog.get_by_role("button", name="Create key").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("networks")
        for label, written in (("Label", "ci"), ("Tags", "team=search"), ("Expires", "2099-01-01T00:00")):
            await expect(dialog.get_by_label(label)).to_have_value(written)
        await expect(dialog.get_by_role("checkbox", name="Role auditor")).to_be_checked()
        await dialog.get_by_role("checkbox", name="Role auditor").uncheck()
        await dialog.get_by_label("Networks").fill("127.0.0.0/8\n::1/128")
        await dialog.get_by_role("button", name="Create key").click()
        secret = await dialog.locator("pre").inner_text()
        await dialog.get_by_role("button", name="Done").click()
        row = page.get_by_role("row", name=secret.split("_")[2])
        await expect(row).to_contain_text("from 127.0.0.0/8, ::1/128; tags team=search")
        assert secret not in await page.content(), "the secret was shown once"
        assert await chat(served, secret) in (200, 401)
        async with asyncio.timeout(HANG_S):
            while await chat(served, secret) != 200:
                await asyncio.sleep(0.2)

        await row.get_by_role("button", name="Rotate").click()
        await dialog.get_by_role("combobox").select_option("0")
        await dialog.get_by_role("button", name="Rotate").click()
        newer = await dialog.locator("pre").inner_text()
        assert newer.split("_")[2] == secret.split("_")[2]
        assert newer != secret
        await dialog.get_by_role("button", name="Done").click()
        await row.get_by_role("button", name="Revoke").click()
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(page.get_by_text("No key yet")).to_be_visible()
        async with asyncio.timeout(HANG_S):
            while await chat(served, newer) != 401:
                await asyncio.sleep(0.2)

        await page.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Delete").click()
        await page.get_by_role("button", name="Open acme").wait_for()
        assert await page.get_by_role("button", name="Open globex").count() == 0


async def test_a_limit_is_set_fills_while_one_looks_is_raised_and_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await open_tenant(page, "acme", "Limits")
        dialog = page.get_by_role("dialog")
        await page.get_by_role("button", name="Set a limit").click()
        await dialog.get_by_label("Counts").select_option("requests")
        await dialog.get_by_label("Window").select_option("day")
        await dialog.get_by_label("Amount").fill("ten")
        await dialog.get_by_role("button", name="Set the limit").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("whole number")
        await dialog.get_by_label("Amount").fill("10")
        await dialog.get_by_label("Warn from").fill("8")
        await dialog.get_by_role("button", name="Set the limit").click()
        row = page.get_by_role("row", name="tenant:acme:requests:day")
        await expect(row).to_contain_text("0 of 10 requests")
        await expect(row).to_contain_text("warns from 8 requests")
        await asyncio.sleep(5)  # gateways follow within 5 s
        assert await chat(served, count=4) == 200
        await expect(row.get_by_role("meter")).to_have_attribute("aria-valuenow", "40", timeout=10_000)
        await row.get_by_role("button", name="Raise").click()
        await dialog.get_by_label("Raise to").fill("5")
        await dialog.get_by_role("button", name="Raise").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("raise it to more")
        await dialog.get_by_label("Raise to").fill("20")
        await dialog.get_by_role("button", name="Raise").click()
        await expect(row).to_contain_text("raised")
        await row.get_by_role("button", name="Change").click()
        await expect(dialog.get_by_label("Amount")).to_have_value("10")
        await dialog.get_by_label("Amount").fill("12")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_be_hidden()
        await expect(row).to_contain_text("20 requests")
        await row.get_by_role("button", name="Remove").click()
        await dialog.get_by_role("button", name="Remove").click()
        await expect(page.get_by_text("No limit yet")).to_be_visible()


async def test_cost_is_seen_by_day_tenant_and_model_and_exported(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Usage & cost")
        await expect(page.get_by_text("No usage in this time")).to_be_visible()
        await run(served, "price", "set", "sim", "--input", "20", "--output", "60")
        await run(served, "limit", "set", "tenant:acme:cost_usd:month", "50")
        await asyncio.sleep(5)  # gateways follow within 5 s
        assert await chat(served, user="=1+1", count=3) == 200
        table = page.get_by_role("region", name="Usage")
        await expect(table.get_by_role("row", name="acme")).to_contain_text("sim", timeout=20_000)
        for name in ("Cost by day and tenant", "Cost by day and model"):
            await expect(page.get_by_role("group", name=name)).to_contain_text("$0.0")
        await page.get_by_role("group", name="One row for each").get_by_label("End user").check()
        await expect(table.get_by_role("columnheader", name="End user")).to_be_visible()
        await expect(table.get_by_text("=1+1")).to_be_visible()
        files = {}
        for kind in ("CSV", "JSON"):
            async with page.expect_download() as waiting:
                await page.get_by_role("button", name=f"Export {kind}").click()
            files[kind] = Path(await (await waiting.value).path()).read_text()
        rows = json.loads(files["JSON"])
        lines = list(csv.DictReader(files["CSV"].splitlines()))
        assert [(row["tenant"], row["user"], row["requests"], row["cost_usd"]) for row in lines] == [
            ("acme", "'=1+1", "3", rows[0]["cost_usd"])
        ], "a spreadsheet runs no formula of a caller"
        await page.get_by_role("form", name="What to show").get_by_label("Tenant").fill("nobody")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("No usage in this time")).to_be_visible()
        assert "tenant=nobody" in page.url, "a view can be sent to somebody"
        await open_tenant(page, "acme", "Budget & cost")
        budget = page.get_by_role("row", name="per month")
        await expect(budget).to_contain_text("of $50.00")
        await expect(budget).to_contain_text("a day")
        await expect(budget).to_contain_text("lasts")


@pytest.mark.req("R14")
async def test_roles_see_and_change_what_their_routes_let_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser):
        await run(served, "tenant", "create", "rivals")
        await run(served, "limit", "set", "tenant:acme:requests:day", "1000")
        await run(served, "limit", "set", "project:acme/default:requests:day", "500")
        own, auditor = await key_with(served, "tenant-admin"), await key_with(served, "auditor")
        async with signed_in(browser, served.admin, own["key"]) as page:
            await show(page, "Tenants & keys")
            await page.get_by_role("button", name="Open acme").wait_for()
            assert "rivals" not in await page.content()
            assert await page.get_by_role("button", name="Create tenant").count() == 0
            await open_tenant(page, "acme", "Limits")
            for limit, may in (("tenant:acme:requests:day", 0), ("project:acme/default:requests:day", 1)):
                row = page.get_by_role("row", name=limit)
                await row.wait_for()
                assert await row.get_by_role("button", name="Remove").count() == may
            assert await page.get_by_role("button", name="Delete").count() == 0
            await tab(page, "Keys")
            foreign = page.get_by_role("row", name=auditor["id"])
            await foreign.wait_for()
            assert await foreign.get_by_role("button").count() == 0, "a key of a role that it may not grant"
            await page.get_by_role("button", name="Create key").click()
            role = page.get_by_role("dialog").get_by_role("checkbox", name="Role")
            await expect(role).to_have_count(1)
            await expect(role).to_have_attribute("value", "tenant-admin")
            await page.keyboard.press("Escape")
            await page.goto(f"{served.admin}/console/#/tenants/rivals")
            await expect(page.get_by_text("There is no such tenant")).to_be_visible()
            await show(page, "Usage & cost")
            filters = page.get_by_role("form", name="What to show")
            await filters.get_by_label("Model").wait_for()
            assert await filters.get_by_label("Tenant").count() == 0
        async with signed_in(browser, served.admin, auditor["key"]) as page:
            await open_tenant(page, "rivals", "Projects")
            for part in PARTS:
                await tab(page, part)
                for name in ("Create key", "Create project", "Change", "Disable", "Delete", "Remove", "Rotate", "Revoke", "Set a limit"):
                    assert await page.get_by_role("button", name=name).count() == 0, (part, name)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_pages_of_tenants_have_no_serious_finding_and_fit_their_window(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    async with opened(tmp_path) as (served, browser):
        await run(served, "tenant", "create", "globex", "--label", HOSTILE)
        await run(served, "price", "set", "sim", "--input", "20", "--output", "60")
        for limit, amount in (("tenant:acme:cost_usd:month", "50"), ("tenant:acme:requests:minute", "60"), ("user:acme:requests:day", "9")):
            await run(served, "limit", "set", limit, amount)
        await asyncio.sleep(5)  # gateways follow within 5 s
        await chat(served, count=3)
        async with signed_in(browser, served.admin, TOKEN, size, theme) as page:
            name = f"{'narrow' if size == NARROW else 'wide'}-{theme}"
            await show(page, "Tenants & keys")
            await page.get_by_role("button", name="Open globex").wait_for()
            assert (await findings(page), await overflows(page)) == ([], False)
            await screenshot(page, f"tenants-{name}")
            await open_tenant(page, "acme", "Keys")
            for part in PARTS:
                await tab(page, part)
                assert (await findings(page), await overflows(page)) == ([], False), part
                await screenshot(page, f"tenant-{part.split()[0].lower()}-{name}")
            await tab(page, "Keys")
            await page.get_by_role("button", name="Create key").click()
            await page.get_by_role("dialog").locator("summary").click()
            assert (await findings(page), await overflows(page)) == ([], False), "the form of a key"
            await page.keyboard.press("Escape")
            await show(page, "Usage & cost")
            await expect(page.get_by_role("region", name="Usage").get_by_role("row", name="acme")).to_be_visible(timeout=20_000)
            assert (await findings(page), await overflows(page)) == ([], False)
            await screenshot(page, f"usage-{name}")
