"""The console's page of requests with ten thousand of them: few rows at a time, every one of them within reach."""

import time
from pathlib import Path

import pytest
from playwright.async_api import expect

from backends.simengine import SimEngine
from gateway.config.load import load_settings
from gateway.record import Record
from gateway.request_log.collector import logged_request
from gateway.request_log.ring import RingLine
from gateway.telemetry.access_log import line_of
from tenancy.request_log import LoggedRequest
from tenancy.stores.sql import SqlRequests, open_engine
from tests.browser import NARROW, chromium, findings, overflows, show, signed_in
from tests.e2e.test_admin_api import TOKEN, governed
from tests.e2e.test_backend_commands import SIM

pytestmark = pytest.mark.browser

REQUESTS = 10_000
ROWS = 100
"""Most rows of the table at a time."""
ELEMENTS = 5000
"""Most elements of the whole page; a browser lays out as many within a frame or two."""


def logged(number: int, now: float) -> LoggedRequest:
    """One of ten thousand requests within the last half hour; the one in the middle is the slowest, of a model of its own."""
    odd = number == REQUESTS // 2
    at = now - 1800 + number * 0.17
    record = Record(
        f"req-{int(at):08x}-{number:05}",
        at,
        "overloaded" if number % 50 == 0 else "ok",
        503 if number % 50 == 0 else 200,
        duration_s=9.0 if odd else 0.1 + number % 100 / 1000,
        overhead_s=0.001,
        tenant=f"team-{number % 7}",
        model="needle" if odd else "sim",
        pool="chat",
        backend="e0",
        attempts=1,
    )
    return logged_request(RingLine(line_of(record)), 72)


async def test_ten_thousand_requests_are_a_hundred_rows_at_a_time_and_one_of_them_is_found(tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, governed(tmp_path, engine.url) as served, chromium() as browser:
        database = open_engine(load_settings(tmp_path / "tidegate.yaml").request_log_url)
        store = SqlRequests(database)
        now = time.time()
        made = [logged(number, now) for number in range(REQUESTS)]
        for at in range(0, REQUESTS, 1000):
            await store.add(made[at : at + 1000], [])
        await database.dispose()
        async with signed_in(browser, served.admin, TOKEN) as page:
            await show(page, "Requests")
            table = page.get_by_role("region", name="Requests")
            rows = table.locator("tbody tr")

            async def elements() -> int:
                return int(await page.evaluate("document.querySelectorAll('*').length"))

            await expect(rows).to_have_count(ROWS)
            await expect(rows.first.get_by_role("button")).to_have_attribute("aria-label", f"Open request {made[-1].id}")
            assert await elements() <= ELEMENTS
            pages = page.get_by_role("navigation", name="Pages of requests")
            seen = set()
            for number in range(2, 6):
                seen |= set(await rows.get_by_role("button").evaluate_all("all => all.map((one) => one.ariaLabel)"))
                await pages.get_by_role("button", name="Older").click()
                await expect(pages.get_by_role("status")).to_have_text(f"Page {number}")
                first = made[-1 - (number - 1) * ROWS].id
                await expect(rows.first.get_by_role("button")).to_have_attribute("aria-label", f"Open request {first}")
                await expect(rows).to_have_count(ROWS)
                assert await elements() <= ELEMENTS
            assert seen == {f"Open request {one.id}" for one in made[-4 * ROWS :]}, "each is on one page"
            await pages.get_by_role("button", name="Newer").click()
            await expect(pages.get_by_role("status")).to_have_text("Page 4")
            await pages.get_by_role("button", name="Newest").click()
            await expect(rows.first.get_by_role("button")).to_have_attribute("aria-label", f"Open request {made[-1].id}")
            # sorting and the slowest ones
            await page.get_by_label("Show").select_option("slowest")
            await expect(rows.first).to_contain_text("9.00 s")
            await pages.get_by_role("button", name="Quicker").click()
            await expect(pages.get_by_role("status")).to_have_text("Page 2")
            # one of them by a filter; another filter begins at its first page
            # the page is drawn anew while somebody writes a filter
            await page.get_by_label("Backend").press_sequentially("e")
            await page.evaluate("dispatchEvent(new HashChangeEvent('hashchange')); new Promise((done) => setTimeout(done, 200))")
            assert await page.get_by_label("Backend").input_value() == "e"
            await page.get_by_label("Backend").fill("")
            await page.get_by_label("Model").fill("needle")
            await page.keyboard.press("Enter")
            await expect(rows).to_have_count(1)
            await expect(pages).to_have_count(0)
            await rows.first.get_by_role("button").click()
            await expect(page.get_by_role("main")).to_contain_text(made[REQUESTS // 2].id)
        async with signed_in(browser, served.admin, TOKEN, NARROW) as page:
            await page.goto(f"{served.admin}/console/#/requests?outcome=failed&tenant=team-0")
            rows = page.get_by_role("region", name="Requests").locator("tbody tr")
            failed = [one for one in made if one.outcome != "ok" and one.tenant == "team-0"]
            await expect(rows).to_have_count(len(failed))
            assert await findings(page) == []
            assert not await overflows(page)
