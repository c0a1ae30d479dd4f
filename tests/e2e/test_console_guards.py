"""The console's pages cache, guards and overload over a real gateway: what a person sees and may do there, and what a role must not see."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from backends.simengine import SimEngine, SimSettings
from tests.browser import NARROW, WIDE, chromium, findings, overflows, screenshot, show, signed_in
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_serve import SETTINGS, Served, serving
from tests.timing import HANG_S

pytestmark = pytest.mark.browser

SLOW = SimSettings(models=("sim",), speed=1)
QUICK = SimSettings(models=("sim",), speed=1000)
MARKUP = "<img src=x onerror=alert(1)>"
POLICY = """
tenant: "*"
models:
  - {name: sim, pool: chat}
cache: {sampled: true}
guards:
  rules:
    - {id: bombs, kind: words, mode: block, words: [bomb]}
    - {id: people, kind: pii, mode: redact, types: [email]}
    - {id: trial, kind: words, mode: shadow, words: [hello]}
"""
PAGES = ("Cache", "Guards", "Overload")
TABS = ("What rules said", "Blocks", "On trial", "Try a text")


@asynccontextmanager
async def opened(home: Path, engine_settings: SimSettings = QUICK, settings: str = SETTINGS) -> AsyncIterator[tuple[Served, Browser]]:
    (home / "token").write_text(TOKEN)
    more = "secrets: {admin_token: {file: token}}\n"
    async with (
        SimEngine(engine_settings) as engine,
        serving(home, engine.url, settings=settings, policy=POLICY, more=more) as served,
        chromium() as browser,
    ):
        yield served, browser


async def key_with(served: Served, role: str, tenant: str = "acme") -> str:
    done = await asyncio.to_thread(command, served, "key", "create", "--tenant", tenant, "--role", role, "--json")
    assert done.returncode == 0, done.stderr
    key = str(json.loads(done.stdout)["key"])
    async with (
        httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=HANG_S, trust_env=False) as client,
        asyncio.timeout(HANG_S),
    ):
        while (await client.get(f"{served.admin}/admin/v1/self")).status_code != 200:
            await asyncio.sleep(0.2)  # the admin process hears of a new key within seconds
    return key


async def chat(served: Served, *texts: str, **fields: Any) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=served.url, headers=served.headers, timeout=HANG_S, trust_env=False) as client:
        bodies = [{"model": "sim", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields} for text in texts]
        return [await client.post("/v1/chat/completions", json=body) for body in bodies]


async def tab(page: Page, name: str) -> None:
    await page.get_by_role("tab", name=name).click()
    await expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


async def test_hits_and_savings_are_seen_and_answers_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        assert [reply.status_code for reply in await chat(served, "Name a river.", "Name a river.", "Name a lake.")] == [200] * 3
        await show(page, "Cache")
        row = page.get_by_role("region", name="The cache by tenant").get_by_role("row", name="acme")
        await expect(row).to_contain_text("33 %")
        await expect(page.get_by_text("There is no estimate")).to_be_visible()
        await page.get_by_label("Tenant or group").fill("acme")
        await page.get_by_role("button", name="List").click()
        kept = page.get_by_role("region", name="Kept answers")
        await expect(kept.get_by_role("row")).to_have_count(3)
        await kept.get_by_role("button", name="Show the answer").first.click()
        await expect(page.get_by_role("dialog", name="A kept answer")).to_contain_text('"finish_reason": "stop"')
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog", name="A kept answer")).to_be_hidden()
        await screenshot(page, "cache")
        await page.get_by_role("button", name="Remove answers…").click()
        dialog = page.get_by_role("dialog", name="Remove kept answers")
        await dialog.get_by_label("Tenant or group").fill("nobody")
        await dialog.get_by_role("button", name="Remove", exact=True).click()
        await expect(dialog.get_by_role("alert").first).to_contain_text("There is no such thing")
        await dialog.get_by_label("Tenant or group").fill("acme")
        await dialog.get_by_role("textbox", name="Namespace Left out").fill("two words")
        await dialog.get_by_role("button", name="Remove", exact=True).click()
        await expect(dialog.get_by_role("textbox", name="Namespace Left out")).to_have_attribute("aria-invalid", "true")
        await dialog.get_by_role("textbox", name="Namespace Left out").fill("")
        await dialog.get_by_role("button", name="Remove", exact=True).click()
        await expect(page.get_by_text("answers of acme (purge 1)")).to_be_visible()
        async with asyncio.timeout(HANG_S):
            while await page.get_by_text("No answer is kept").count() == 0:
                await page.get_by_role("button", name="List").click()
                await page.wait_for_timeout(300)


async def test_blocks_are_seen_within_seconds_and_rules_on_trial_with_what_they_would_have_done(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        replies = await chat(served, "how to build a bomb", "hello", "hello ann@example.com")
        assert [reply.status_code for reply in replies] == [400, 200, 200]
        await show(page, "Guards")
        await expect(page.get_by_role("region", name="Verdicts by tenant").get_by_role("row", name="acme")).to_contain_text("33 %")
        await screenshot(page, "guards")
        await tab(page, "On trial")
        row = page.get_by_role("region", name="Rules in shadow mode").get_by_role("row", name="trial")
        await expect(row).to_contain_text("block would have refused or cut up to 2 of 3 requests")
        differ = page.get_by_role("region", name="Requests that rules on trial differ about")
        await expect(differ.locator("tbody tr")).to_have_count(2, timeout=30_000)
        for reply in replies[1:]:
            found = differ.get_by_role("row", name=reply.headers["x-tidegate-request-id"])
            await expect(found).to_contain_text("trial: word in the request")
            await expect(found.get_by_role("link")).to_have_attribute("href", f"#/requests/{reply.headers['x-tidegate-request-id']}")
        assert "ann@example.com" not in await differ.inner_text(), "no text of a request is shown"
        await screenshot(page, "guards-on-trial")
        await differ.get_by_role("link").first.click()
        await expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()
        await show(page, "Guards")
        await tab(page, "Blocks")
        blocks = page.get_by_role("region", name="Blocks by guard rules")
        await expect(blocks.get_by_role("row", name="bombs")).to_contain_text("input", timeout=30_000)
        await expect(blocks.get_by_role("link")).to_have_attribute("href", f"#/requests/{replies[0].headers['x-tidegate-request-id']}")
        assert "bomb " not in await blocks.inner_text(), "no text of a request is shown"


async def test_a_text_is_tried_by_keyboard_and_what_stands_in_it_stays_text(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await page.goto(f"{served.admin}/console/#/guards/test")
        await expect(page.get_by_role("button", name="Judge")).to_be_enabled()
        await page.get_by_role("textbox", name="Text", exact=True).focus()
        # the places of findings are counted in characters, and the first one is two units of a JavaScript string
        await page.keyboard.type(f"\U0001f389 {MARKUP} hello ann@example.com")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name="Judge")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").get_by_text("is changed")).to_be_visible()
        await expect(page.locator("mark")).to_have_text(["hello", "ann@example.com"])
        assert await page.locator("pre img").count() == 0
        await expect(page.locator("pre").last).to_have_text(f"\U0001f389 {MARKUP} hello [EMAIL]")
        await page.get_by_label("written here").check()
        assert await page.get_by_role("textbox", name="Text", exact=True).input_value(), "the text stays where the rules are others"
        await page.get_by_role("textbox", name="Rules").fill("rules: [{id: a, kind: words, mode: block}]")
        await page.get_by_role("button", name="Judge").click()
        await expect(page.locator("label").filter(has_text="Rules").get_by_role("alert")).to_contain_text("rules:1:")
        await page.get_by_role("textbox", name="Rules").fill(f"rules: [{{id: own, kind: words, mode: block, words: ['{MARKUP}']}}]")
        await page.get_by_role("button", name="Judge").click()
        await expect(page.get_by_role("status").get_by_text("is refused")).to_be_visible()
        await expect(page.get_by_role("region", name="Findings").get_by_role("row", name="own")).to_contain_text(MARKUP)


async def test_overload_tells_who_waits_what_comes_next_and_what_was_refused(tmp_path: Path) -> None:
    narrow = SETTINGS.replace("    model: sim\n", "    model: sim\n    limit: {{max_requests: 1}}\n")
    async with opened(tmp_path, SLOW, narrow) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Overload")
        coming = page.get_by_role("region", name="What the next request would meet")
        await expect(coming.get_by_role("row", name="interactive")).to_contain_text("goes at once")
        await expect(page.get_by_text("Nothing was refused")).to_be_visible()
        busy = [asyncio.create_task(chat(served, f"Tell a story {number}.", max_tokens=400)) for number in range(4)]
        try:
            own = coming.get_by_role("row", name="acme")
            await expect(own).to_contain_text("waits", timeout=20_000)
            await expect(own).to_contain_text("1 min 0 s")
            async with httpx.AsyncClient(base_url=served.url, headers=served.headers, timeout=HANG_S, trust_env=False) as client:
                body = {"model": "sim", "messages": [{"role": "user", "content": "soon"}], "max_tokens": 5}
                late = await client.post("/v1/chat/completions", json=body, headers={"x-tidegate-timeout-s": "0.3"})
                assert late.status_code in (429, 503)
            refused = page.get_by_role("region", name="Refusals by reason")
            await expect(refused.get_by_role("row", name="default")).to_be_visible(timeout=30_000)
            await expect(page.get_by_role("region", name="Concurrency limits found").get_by_role("row", name="e0")).to_contain_text("1")
            await screenshot(page, "overload")
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)


async def test_a_tenants_admin_sees_the_own_tenant_and_an_auditor_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser):
        for words in (("tenant", "create", "rivals"), ("key", "create", "--tenant", "rivals", "--json")):
            done = await asyncio.to_thread(command, served, *words)
            assert done.returncode == 0, done.stderr
        rival = {"authorization": f"Bearer {json.loads(done.stdout)['key']}"}
        async with httpx.AsyncClient(base_url=served.url, headers=rival, timeout=HANG_S, trust_env=False) as client:
            async with asyncio.timeout(HANG_S):
                body = {"model": "sim", "messages": [{"role": "user", "content": "a bomb"}]}
                while (await client.post("/v1/chat/completions", json=body)).status_code != 400:
                    await asyncio.sleep(0.2)
            body = {"model": "sim", "messages": [{"role": "user", "content": "a river of the rivals"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        await chat(served, "a bomb", "a river")
        async with signed_in(browser, served.admin, await key_with(served, "tenant-admin")) as page:
            links = await page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
            assert "Overload" not in links
            for name in ("Cache", "Guards"):
                await show(page, name)
                await page.get_by_role("row", name="acme").first.wait_for()
                assert "rivals" not in await page.get_by_role("main").inner_text()
                assert await page.get_by_role("main").get_by_role("group").count() == 0, "no live chart of all tenants"
            await tab(page, "Blocks")
            await page.get_by_role("row", name="bombs").wait_for(timeout=30_000)
            assert "rivals" not in await page.get_by_role("main").inner_text()
            await tab(page, "Try a text")
            assert await page.get_by_label("written here").count() == 0
            await page.get_by_role("textbox", name="Text", exact=True).fill("a bomb")
            await page.get_by_role("button", name="Judge").click()
            await expect(page.get_by_role("status").get_by_text("is refused")).to_be_visible()
        async with signed_in(browser, served.admin, await key_with(served, "auditor")) as page:
            await show(page, "Cache")
            await page.get_by_role("row", name="rivals").first.wait_for()
            assert await page.get_by_role("button", name="Remove answers…").count() == 0
            await page.get_by_label("Tenant or group").fill("acme")
            await page.get_by_role("button", name="List").click()
            await page.get_by_role("region", name="Kept answers").get_by_role("row").first.wait_for()
            assert await page.get_by_role("button", name="Show the answer").count() == 0
            await show(page, "Guards")
            assert await page.get_by_role("tab", name="Try a text").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_the_pages_have_no_serious_finding_and_fit_their_window(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN, size, theme) as page:
        await chat(served, "a river", "a river", "a bomb", "hello ann@example.com")
        for name in PAGES:
            await show(page, name)
            await page.get_by_role("main").get_by_role("region").first.wait_for()
            assert await findings(page) == [], name
            assert not await overflows(page), name
        await show(page, "Guards")
        for name in TABS:
            await tab(page, name)
            if name == "Try a text":
                await page.get_by_role("textbox", name="Text", exact=True).fill("hello, a bomb for ann@example.com")
                await page.get_by_role("button", name="Judge").click()
            await page.get_by_role("main").get_by_role("region").first.wait_for(timeout=30_000)
            assert await findings(page) == [], name
            assert not await overflows(page), name


USED = "a[href], button:not([disabled]), input:not([disabled]), select, textarea, summary"
REACHED = f"""async () => {{
    const used = (element) => element.checkVisibility() && !(element.type === "radio" && !element.checked) && element.tabIndex >= 0;
    const left = [...document.querySelectorAll({USED!r})].filter((element) => used(element) && !element.dataset.reached);
    return left.map((element) => element.outerHTML);
}}"""
"""What can be used on the page and was not marked as reached. Of radio buttons and tabs, Tab reaches the chosen one, arrows the others."""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_everything_that_can_be_used_is_reached_by_tab_and_says_what_it_is(tmp_path: Path, size: tuple[int, int]) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN, size) as page:
        await chat(served, "a river", "a bomb")
        for name in ("Fleet", "Gateway", *PAGES):
            await show(page, name)
            await page.get_by_role("main").get_by_role("region").first.wait_for()
            await page.evaluate("document.activeElement.blur()")
            left: list[str] = []
            for _ in range(150):
                await page.keyboard.press("Tab")
                await page.evaluate("document.activeElement.dataset.reached = 1")
                if not (left := await page.evaluate(REACHED)):
                    break
            assert left == [], name
            assert await findings(page) == [], name


async def test_the_arrow_keys_move_between_tabs(tmp_path: Path) -> None:
    async with opened(tmp_path) as (served, browser), signed_in(browser, served.admin, TOKEN) as page:
        await show(page, "Guards")
        await page.get_by_role("tab", name="What rules said").focus()
        for name in (*TABS[1:], TABS[0]):
            await page.keyboard.press("ArrowRight")
            tab_now = page.get_by_role("tab", name=name)
            await expect(tab_now).to_have_attribute("aria-selected", "true")
            await expect(tab_now).to_be_focused()
