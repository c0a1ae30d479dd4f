"""The console's page Charts over a real gateway: drawn from a real Prometheus, and in words where there is none or it does not answer."""

import asyncio
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from backends.simengine import SimEngine
from gateway.cli.demo_engines import free_port
from gateway.cli.demo_observe import console_settings, prometheus_url, start_prometheus, wait_for_scrape
from gateway.dashboards.boards import OVERVIEW
from gateway.dashboards.rules import rules
from tests.browser import NARROW, WIDE, chromium, console_page, findings, overflows, screenshot, show, sign_in, signed_in
from tests.e2e.test_admin_api import TOKEN, governed
from tests.e2e.test_backend_commands import SIM
from tests.e2e.test_serve import Served
from tests.timing import HANG_S

pytestmark = pytest.mark.browser

LINES = """title => {
  const figure = [...document.querySelectorAll('figure')].find((one) => one.getAttribute('aria-label') === title);
  const canvas = figure.querySelector('canvas');
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement('canvas').getContext('2d');
  return [1, 2, 3, 4, 5, 6, 7, 8].filter((at) => {
    probe.fillStyle = style.getPropertyValue(`--s${at}`).trim();
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const drawn = (i) => data[i + 3] === 255 && data[i] === r && data[i + 1] === g && data[i + 2] === b;
    for (let i = 0; i < data.length; i += 4) if (drawn(i)) return true;
    return false;
  });
}"""
"""The series colours that are on the canvas of a chart."""


async def traffic(served: Served, count: int) -> None:
    async with httpx.AsyncClient(base_url=served.url, headers=served.headers, timeout=HANG_S, trust_env=False) as client:
        for number in range(count):
            body = {"model": "sim", "messages": [{"role": "user", "content": f"hello {number}"}], "stream": True, "max_tokens": 5}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def charts(page: Page, served: Served, more: str = "") -> None:
    await page.goto(f"{served.admin}/console/#/charts?last=5+minutes{more}")
    await page.get_by_role("heading", name="Charts").wait_for()


async def test_the_dashboards_are_drawn_from_a_real_prometheus(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: make observe-tools")
    url = prometheus_url()
    with ExitStack() as stack:
        async with SimEngine(SIM) as engine, governed(tmp_path, engine.url, console_settings(url)) as served, chromium() as browser:
            targets = {"tidegate": served.admin.removeprefix("http://")}
            await asyncio.to_thread(start_prometheus, stack, tmp_path, targets, rules(), url)
            for seen in (20, 40, 60):
                await traffic(served, 20)
                await asyncio.to_thread(wait_for_scrape, url, seen)
            async with signed_in(browser, served.admin, TOKEN) as page:
                await show(page, "Charts")
                await charts(page, served)
                requests = page.get_by_role("group", name="Requests by model")
                await expect(requests.locator(".legend")).to_contain_text("sim", timeout=30_000)
                await expect(page.get_by_role("group", name="Availability")).to_contain_text("100 %", timeout=30_000)
                async with asyncio.timeout(HANG_S):
                    while 1 not in await page.evaluate(LINES, "Requests by model"):
                        await page.wait_for_timeout(500)
                titles = {panel.title for panel in OVERVIEW.panels}
                await expect(page.locator("figure")).to_have_count(len(titles))
                assert {await one.get_attribute("aria-label") for one in await page.locator("figure").all()} == titles
                await expect(page.get_by_role("group", name="Failures by kind")).to_contain_text("Empty until a request fails")
                # a choice goes into the address, and into the question
                chosen = re.compile(r"/panels/requests-by-model\?.*model=sim")
                async with page.expect_response(chosen, timeout=HANG_S * 1000) as drawn:
                    await page.get_by_role("combobox", name="Model").select_option("sim")
                    await page.wait_for_url("**model=sim*")
                assert (await drawn.value).ok
                await expect(requests.locator(".legend")).to_contain_text("sim")
                await page.get_by_role("combobox", name="Dashboard").select_option(label="fleet")
                await expect(page.get_by_role("group", name="Engines that take requests")).to_contain_text("yes")
                assert await findings(page) == []
            for size, theme in ((WIDE, "light"), (NARROW, "dark")):
                async with signed_in(browser, served.admin, TOKEN, size, theme) as page:
                    await charts(page, served)
                    await expect(requests_of(page)).to_contain_text("sim", timeout=30_000)
                    assert await findings(page) == []
                    assert not await overflows(page)
                    await screenshot(page, f"charts-{'narrow' if size == NARROW else 'wide'}-{theme}", whole=False)


def requests_of(page: Page) -> Any:
    return page.get_by_role("group", name="Requests by model").locator(".legend")


@contextmanager
def refusing(url: str) -> Iterator[None]:
    """A Prometheus that lists labels and refuses queries."""

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = "/label/" in self.path
            self.send_response(200 if listed else 422)
            self.end_headers()
            refused = b'{"status":"error","error":"too many <b>samples</b>"}'
            self.wfile.write(b'{"status":"success","data":["sim"]}' if listed else refused)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", int(url.rpartition(":")[2])), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


async def test_a_prometheus_that_is_away_or_refuses_is_said_and_asked_again(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with (
        SimEngine(SIM) as engine,
        governed(tmp_path, engine.url, console_settings(url)) as served,
        chromium() as browser,
        console_page(browser, served.admin, meant="status of 503") as page,
    ):
        await sign_in(page, TOKEN)
        await charts(page, served)
        await expect(page.get_by_role("alert")).to_contain_text("Prometheus cannot be reached")
        assert await page.locator("figure").count() == 0
        assert await findings(page) == []
        with refusing(url):
            await page.get_by_role("button", name="Try again").click()
            latency = page.get_by_role("group", name="Time to the first token")
            await expect(latency).to_contain_text("Prometheus answered 422: too many <b>samples</b>.")
            await expect(page.get_by_role("group", name="Availability")).to_contain_text("422")
            assert await findings(page) == []


async def test_without_a_prometheus_the_page_says_what_to_set(tmp_path: Path) -> None:
    async with (
        SimEngine(SIM) as engine,
        governed(tmp_path, engine.url) as served,
        chromium() as browser,
        signed_in(browser, served.admin, TOKEN) as page,
    ):
        await show(page, "Charts")
        await expect(page.get_by_role("main")).to_contain_text("Set console.prometheus_url to the address")
        # how values are drawn and judged, by the modules of the page
        piled = await page.evaluate(
            "import('/console/lib/chart.js').then(({ piled }) => piled([[1, 2, null], [0, 0, 0], [3, 0, null]]"
            ".map((values) => ({ values }))))"
        )
        assert piled == [[1, 2, None], [None, None, 0], [4, 2, None]], "a series that stays at 0 has no line upon another one"
        judged = "import('/console/pages/charts.js').then(({ judged }) => [0.5, 0.995, 1].map((value) => judged(value, %s)))"
        rising = "{ most: 1, thresholds: [{ value: 0.99, is_bad: false }, { value: 0.999, is_bad: false }] }"
        falling = "{ most: 1, thresholds: [{ value: 0.85, is_bad: false }, { value: 1, is_bad: true }] }"
        assert await page.evaluate(judged % rising) == ["bad", "warn", "good"]
        assert await page.evaluate(judged % falling) == ["good", "warn", "bad"]
        await page.get_by_role("main").get_by_role("link", name="Fleet").click()
        await expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
