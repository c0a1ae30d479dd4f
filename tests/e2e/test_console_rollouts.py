"""The console's pages of rollouts and policies in a real browser: start and abort a rollout, see a broken canary go back, change policies,
simulate; what a role must not see; and names and texts of foreign hands that stay text."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.browser import NARROW, WIDE, chromium, findings, overflows, screenshot, show, signed_in
from tests.e2e.test_admin_api import TOKEN
from tests.e2e.test_console import key_with
from tests.e2e.test_serve import POLICY, Served, ask, serving
from tests.timing import HANG_S

pytestmark = pytest.mark.browser

GOOD, BAD = SimSettings(models=("sim",), speed=1000), SimSettings(models=("sim",), speed=1000, faults=(FaultRule("status_500"),))
MORE = """
  - name: chat-v2
    model: sim
    backends: [{{id: c0, url: "{canary}"}}]
secrets: {{admin_token: {{file: token}}}}
policies_from: {policies}
"""
QUICK: dict[str, Any] = {
    "name": "broken",
    "baseline": "chat",
    "canary": "chat-v2",
    "steps": [{"share": 0.5, "min_s": 600.0, "max_s": 3600.0}, {"share": 1.0}],
    "warm_up_s": 0.0,
    "warm_up_requests": 0,
    "settle_s": 0.0,
    "interval_s": 1.0,
    "min_samples": 10,
}
MARKUP = "<img src=x onerror=alert(1)>"
OWNER = {"authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def opened(home: Path, canary: SimSettings = GOOD, policies: str = "database") -> AsyncIterator[tuple[Served, Browser]]:
    """A gateway with two pools, and a browser."""
    (home / "token").write_text(TOKEN)
    async with SimEngine(GOOD) as engine, SimEngine(canary) as new:
        more = MORE.format(canary=new.url, policies=policies)
        async with serving(home, engine.url, more=more) as served, chromium() as browser:
            yield served, browser


@asynccontextmanager
async def called(served: Served) -> AsyncIterator[None]:
    """Requests of many end users while the test goes on."""

    async def calls(client: httpx.AsyncClient, caller: int) -> None:
        for number in range(1_000_000):
            await client.post("/v1/chat/completions", json=ask(user=f"u{caller}-{number}", stream=True))

    async with httpx.AsyncClient(base_url=served.url, headers=served.headers, timeout=HANG_S, trust_env=False) as client:
        tasks = [asyncio.create_task(calls(client, caller)) for caller in range(2)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def started(served: Served, **changes: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        reply = await client.post(f"{served.admin}/admin/v1/rollouts", json={**QUICK, **changes}, headers=OWNER)
    assert reply.status_code == 201, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def confirm(page: Page, label: str) -> None:
    await page.get_by_role("main").get_by_role("button", name=label, exact=True).first.click()
    await page.get_by_role("dialog").get_by_role("button", name=label, exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_hidden()


def status(page: Page) -> Locator:
    return page.get_by_role("main").get_by_role("status").first


async def test_a_rollout_is_started_from_the_form_paused_resumed_promoted_and_aborted(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Rollouts")
        await expect(page.get_by_text("No rollout is active")).to_be_visible()
        await page.get_by_role("link", name="Start a rollout").click()
        await page.get_by_role("textbox", name="Name Lower-case").fill("Bad Name")
        await page.locator("select[name=baseline]").select_option("chat")
        await page.locator("select[name=canary]").select_option("chat-v2")
        await page.get_by_label("Steps of my own").check()
        await page.get_by_label("itl, %").fill("7")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("name")
        await expect(page.get_by_role("textbox", name="Name Lower-case")).to_have_attribute("aria-invalid", "true")
        await page.get_by_role("textbox", name="Name Lower-case").fill("chat-2")
        await page.get_by_label("Share of step 1").fill("20")
        await page.get_by_label("Share of step 2").fill("10")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("steps")
        await page.get_by_label("Share of step 2").fill("30")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(page.get_by_role("heading", name="chat-2")).to_be_visible()
        await expect(status(page)).to_contain_text("running")
        await page.get_by_text("What was asked for").click()
        await expect(page.get_by_text('"itl": 0.07')).to_be_visible()
        await confirm(page, "Pause")
        await expect(status(page)).to_contain_text("paused")
        await confirm(page, "Resume")
        await expect(status(page)).to_contain_text("running")
        await confirm(page, "Promote")
        await expect(page.get_by_text("2 of 4")).to_be_visible()
        await page.get_by_role("button", name="Abort").click()
        await page.get_by_role("dialog").get_by_label("Reason").fill(f"wrong weights {MARKUP}")
        await page.get_by_role("button", name="Abort the rollout").click()
        await expect(status(page)).to_contain_text(f"wrong weights {MARKUP}")
        await expect(status(page)).to_contain_text("rolled back")
        assert await page.get_by_role("button", name="Abort").count() == 0
        await expect(page.get_by_role("row", name="abort")).to_contain_text("bootstrap")
        await page.get_by_role("link", name="All rollouts").click()
        await expect(page.get_by_role("region", name="Ended rollouts")).to_contain_text(MARKUP)


async def test_a_broken_canary_is_seen_to_go_back_and_why(tmp_path: Path) -> None:
    async with opened(tmp_path, BAD) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Rollouts")
        await page.get_by_role("link", name="Start a rollout").click()
        await page.get_by_role("tab", name="Document").click()
        document = page.get_by_role("textbox", name="Document")
        await document.fill("name: yaml")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("This is no JSON")
        await document.fill(json.dumps(QUICK))
        await page.get_by_role("button", name="Start", exact=True).click()
        async with called(served):
            await expect(page.get_by_role("row", name="Error rate error rate")).to_contain_text("worse", timeout=HANG_S * 1000)
        await expect(status(page)).to_contain_text("rolled back: ")
        await expect(status(page)).to_contain_text("error rate")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_the_verdict_is_drawn_and_pages_have_no_serious_finding(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN, size, theme) as page:
        kind = f"{'narrow' if size == NARROW else 'wide'}-{theme}"
        made = await started(served)

        async def sound(name: str) -> None:
            assert await findings(page) == [], name
            assert not await overflows(page), name
            await screenshot(page, f"{name}-{kind}")

        async with called(served):
            await page.goto(f"{served.admin}/console/#/rollouts/{made['id']}")
            await expect(page.get_by_role("group", name="Error rate: difference to the baseline, points")).to_contain_text(
                "at most +", timeout=HANG_S * 1000
            )
            await expect(page.get_by_role("img", name="Interval from").first).to_be_visible()
            await sound("rollout")
        await show(page, "Rollouts")
        await page.get_by_role("row", name="broken").wait_for()
        await sound("rollouts")
        await page.get_by_role("link", name="Start a rollout").click()
        await page.get_by_label("Steps of my own").check()
        await page.get_by_label("Mirror requests").check()
        await sound("rollout-start")
        await show(page, "Policies")
        for tab in ("Files", "Versions", "Try a change", "What if"):
            await page.get_by_role("tab", name=tab).click()
            await expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
            await sound(f"policies-{tab.lower().replace(' ', '-')}")


async def test_policies_are_checked_applied_compared_and_rolled_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Policies")
        await expect(page.get_by_text("Version 1 of the database")).to_be_visible()
        await page.get_by_role("tab", name="Try a change").click()
        text = page.get_by_label("Text of default.yaml")
        await text.fill(POLICY + "  - {name: second, pool: nowhere}\n")
        await page.get_by_role("button", name="Check").click()
        await expect(page.get_by_role("alert")).to_contain_text("default.yaml:4:20: models[1].pool: there is no pool 'nowhere'")
        await text.fill(POLICY + f"  - {{name: second, pool: chat-v2}}  # {MARKUP}\n")
        await page.get_by_role("button", name="Check").click()
        await expect(page.get_by_text("everyone else: model second -> chat-v2 added")).to_be_visible()
        await expect(page.get_by_role("region", name="Changed lines of default.yaml")).to_contain_text(MARKUP)
        await page.get_by_label("Reason").fill(f"a second model {MARKUP}")
        await confirm(page, "Apply")
        await expect(page.get_by_text("Version 2 is in the database")).to_be_visible()
        await page.get_by_role("tab", name="Versions").click()
        await expect(page.get_by_role("row", name="Show version 2")).to_contain_text(MARKUP)
        await expect(page.get_by_role("region", name="Changed lines of default.yaml")).to_contain_text("added: ")
        await confirm(page, "Roll back")
        await expect(page.get_by_role("row", name="Show version 3")).to_contain_text("back to version 1")
        await page.get_by_role("button", name="Reload").click()
        await expect(page.get_by_text("1 worker has")).to_be_visible()


async def test_files_with_mistakes_are_told_and_what_was_active_stays(tmp_path: Path) -> None:
    async with opened(tmp_path, policies="files") as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Policies")
        await expect(page.get_by_text("name: sim, pool: chat")).to_be_visible()
        assert await page.get_by_role("tab", name="Versions").count() == 0
        (served.home / "policies" / "default.yaml").write_text("tenant: nobody\nmodls: []\n")
        await page.get_by_role("button", name="Reload").click()
        await expect(page.get_by_role("alert").first).to_contain_text("modls")
        await expect(page.get_by_text("the policies before stay active")).to_be_visible()
        await page.get_by_role("tab", name="Try a change").click()
        assert await page.get_by_role("button", name="Apply").count() == 0


async def test_what_if_shows_its_progress_and_its_result_and_can_be_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await page.goto(f"{served.admin}/console/#/policies/what-if")
        await page.get_by_label("Requests at most").fill("20000")
        await page.get_by_role("button", name="Simulate").click()
        await page.get_by_role("progressbar").wait_for()
        await confirm(page, "Cancel it")
        await expect(page.get_by_text("cancelled")).to_be_visible()
        await page.get_by_label("Requests at most").fill("600")
        await page.get_by_role("button", name="Simulate").click()
        await expect(page.get_by_role("heading", name="chat: 600 requests, simulated")).to_be_visible(timeout=HANG_S * 1000)
        await expect(page.get_by_role("group", name="Time to first token, requests from the fastest")).to_contain_text("ms")
        await expect(page.get_by_role("region", name="Figures of each policy")).to_contain_text("least_load")
        assert await findings(page) == []
        await screenshot(page, "what-if")
        async with called(served):
            await page.locator("select[name=source]").select_option("recent")
            await expect(page.locator("select[name=workload]")).to_be_hidden()
            await asyncio.sleep(2)  # requests are in the log a second after their end
        await page.get_by_role("button", name="Simulate").click()
        await expect(page.get_by_role("heading", name="requests, simulated").first).not_to_contain_text("chat:", timeout=HANG_S * 1000)


async def test_who_may_only_look_sees_no_control(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser):
        made = await started(served)
        auditor = await key_with(served, "auditor")
        async with signed_in(browser, served.admin, auditor["key"]) as page:
            await page.goto(f"{served.admin}/console/#/rollouts/{made['id']}")
            await expect(status(page)).to_contain_text("running")
            for label in ("Pause", "Promote", "Abort", "Close"):
                assert await page.get_by_role("button", name=label, exact=True).count() == 0
            await page.goto(f"{served.admin}/console/#/rollouts/new")
            await expect(page.get_by_role("alert")).to_contain_text("There is no such thing")
            await show(page, "Policies")
            await page.get_by_role("tab", name="Versions").click()
            await page.get_by_role("row", name="Show version 1").wait_for()
            assert await page.get_by_role("tab", name="What if").count() == 0
            assert await page.get_by_role("tab", name="Try a change").count() == 0
            assert await page.get_by_role("button", name="Reload").count() == 0
        own = await key_with(served, "tenant-admin")
        async with signed_in(browser, served.admin, own["key"]) as page:
            links = await page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
            assert not {"Rollouts", "Policies"} & set(links)


async def test_a_difference_holds_both_texts(tmp_path: Path) -> None:
    pairs = [
        ("a\nb\nc\n", "a\nx\nc\nd\n"),
        ("", "a\n"),
        ("a\nb\na\nb\n", "b\na\nb\nb\n"),
        ("same\n", "same\n"),
        ("x\n" * 50, "x\n" * 49 + "y\n"),
    ]
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        for before, after in pairs:
            lines = await page.evaluate("([a, b]) => import('/console/lib/diff.js').then((diff) => diff.lineDiff(a, b))", [before, after])
            for text, left_out in ((before, "+"), (after, "-")):
                assert "\n".join(line["text"] for line in lines if line["sign"] != left_out) == text
            if before == after:
                assert {line["sign"] for line in lines} == {" "}
