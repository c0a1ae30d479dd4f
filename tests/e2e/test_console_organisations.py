"""The console's page of organisations in a real browser: a person makes one, puts a tenant into it, limits both together, sees the gauge
move, and is told why an organisation with tenants stays."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser import NARROW, WIDE, findings, overflows, screenshot, show, signed_in
from tests.e2e.test_admin_api import TOKEN
from tests.e2e.test_console import key_with, opened
from tests.e2e.test_console_tenants import HOSTILE, chat, run, tab

pytestmark = pytest.mark.browser


async def test_an_organisation_is_made_limited_and_kept_while_a_tenant_is_in_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        main, dialog = page.get_by_role("main"), page.get_by_role("dialog")
        await show(page, "Organisations")
        await main.get_by_role("button", name="Open default").wait_for()
        await main.get_by_role("button", name="Create organisation").click()
        await dialog.get_by_role("textbox", name="Name 1 to 63").fill("Not A Name")
        await dialog.get_by_role("button", name="Create organisation").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("name: must match the pattern")
        await dialog.get_by_role("textbox", name="Name 1 to 63").fill("umbrella")
        await dialog.get_by_label("Label").fill(HOSTILE)
        await dialog.get_by_role("button", name="Create organisation").click()
        await main.get_by_role("heading", name="umbrella", level=1).wait_for()
        await expect(main.get_by_text(HOSTILE)).to_be_visible()
        await expect(main.get_by_text("No tenant is in it")).to_be_visible()

        await page.goto(f"{served.admin}/console/#/tenants/acme")
        await main.get_by_role("button", name="Change tenant acme").click()
        await dialog.get_by_role("combobox", name="Organisation").select_option("umbrella")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_be_hidden()
        await main.get_by_role("link", name="umbrella").click()
        await expect(main.get_by_role("row", name="acme")).to_be_visible()

        await tab(page, "Limits")
        await main.get_by_role("button", name="Set a limit").click()
        await expect(dialog.get_by_label("Of").locator("option")).to_have_text(["the whole organisation"])
        await dialog.get_by_label("Counts").select_option("requests")
        await dialog.get_by_label("Window").select_option("day")
        await dialog.get_by_label("Amount").fill("10")
        await dialog.get_by_role("button", name="Set the limit").click()
        row = main.get_by_role("row", name="organisation:umbrella:requests:day")
        await expect(row).to_contain_text("0 of 10 requests")
        await asyncio.sleep(5)  # gateways follow within 5 s
        assert await chat(served, count=4) == 200
        await expect(row.get_by_role("meter")).to_have_attribute("aria-valuenow", "40", timeout=10_000)
        await row.get_by_role("button", name="Change").click()
        await dialog.get_by_label("Amount").fill("20")
        await dialog.get_by_role("button", name="Save").click()
        await expect(row.get_by_role("meter")).to_have_attribute("aria-valuenow", "20", timeout=10_000)

        await main.get_by_role("button", name="Change organisation umbrella").click()
        await dialog.get_by_label("Label").fill("a note")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_be_hidden()
        await main.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Delete").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("umbrella")
        await dialog.get_by_role("button", name="Cancel").click()
        await run(served, "tenant", "set", "acme", "--org", "default")
        await main.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Delete").click()
        await main.get_by_role("button", name="Open default").wait_for()
        await expect(main.get_by_role("button", name="Open umbrella")).to_have_count(0)


async def test_an_auditor_reads_organisations_and_changes_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser):
        await run(served, "limit", "set", "organisation:default:requests:day", "1000")
        auditor = await key_with(served, "auditor")
        async with signed_in(browser, served.admin, auditor["key"]) as page:
            await show(page, "Organisations")
            await page.get_by_role("button", name="Open default").click()
            for part in ("Tenants", "Limits", "Budgets"):
                await tab(page, part)
                for name in ("Create organisation", "Change", "Disable", "Delete", "Set a limit", "Raise", "Remove"):
                    assert await page.get_by_role("button", name=name).count() == 0, (part, name)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_the_page_has_no_serious_finding_and_fits_its_window(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    async with opened(tmp_path) as (served, browser):
        await run(served, "org", "create", "umbrella", "--label", HOSTILE)
        await run(served, "limit", "set", "organisation:default:cost_usd:month", "50")
        await run(served, "limit", "set", "organisation:default:requests:minute", "60")
        async with signed_in(browser, served.admin, TOKEN, size, theme) as page:
            name = f"{'narrow' if size == NARROW else 'wide'}-{theme}"
            await show(page, "Organisations")
            await page.get_by_role("button", name="Open umbrella").wait_for()
            assert (await findings(page), await overflows(page)) == ([], False)
            await screenshot(page, f"organisations-{name}")
            await page.get_by_role("button", name="Open default").click()
            for part in ("Tenants", "Limits", "Budgets"):
                await tab(page, part)
                assert (await findings(page), await overflows(page)) == ([], False), part
                await screenshot(page, f"organisation-{part.lower()}-{name}")
