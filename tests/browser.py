"""A real headless Chromium over the console of a running gateway, for tests.

`chromium` opens one, `signed_in` a page of the console with a credential in force. A page that logs an error, throws, or breaks the content
security policy fails the test when it is closed. `findings` are those of axe-core that a person with a screen reader or a keyboard would
meet; `screenshot` keeps a picture for people.
"""

import contextlib
import io
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from axe_core_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM: Final = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS: Final = (
    "--no-sandbox",  # a run as root has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE: Final = (1280, 900)
NARROW: Final = (390, 844)
WITHIN_MS: Final = 30_000
"""Longest wait for what a page shows: the machine may be busy."""

expect.set_options(timeout=WITHIN_MS)

SERIOUS: Final = frozenset({"serious", "critical"})
EXPECTED: Final = ("the server responded with a status of 4", "net::ERR_")
"""Chromium logs every request that is refused or breaks off; whether that is right the test itself says."""


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser; a test without one fails and says what to install."""
    if CHROMIUM is None:
        pytest.fail("no Chromium: install Debian's package chromium, or name one in CHROMIUM")
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def console_page(
    browser: Browser, admin_url: str, size: tuple[int, int] = WIDE, theme: str = "light", meant: str = ""
) -> AsyncIterator[Page]:
    """The console's first page, before anybody has signed in. Fails when the page did something wrong; `meant` are words of an error that
    the test makes on purpose."""
    wrong: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(words in message.text for words in (*EXPECTED, meant) if words):
            wrong.append(message.text)

    width, height = size
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light")
    try:
        page = await context.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.on("console", heard)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a script of a foreign text ran: {dialog.message}"))
        await page.goto(f"{admin_url}/console/")
        yield page
        assert not wrong, wrong
    finally:
        await context.close()


async def sign_in(page: Page, token: str) -> None:
    """Sign in as a person does, and wait for the navigation."""
    await page.get_by_label("Admin token or key with a role").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("button", name="Sign out").wait_for()


@contextlib.asynccontextmanager
async def signed_in(
    browser: Browser, admin_url: str, token: str, size: tuple[int, int] = WIDE, theme: str = "light"
) -> AsyncIterator[Page]:
    """A page of the console whose person has signed in."""
    async with console_page(browser, admin_url, size, theme) as page:
        await sign_in(page, token)
        yield page


async def show(page: Page, name: str) -> None:
    """Go to a page of the console by its link, and wait for its heading. `name` is its title in the navigation."""
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()
    await page.get_by_role("main").get_by_role("heading", level=1, name=name, exact=True).wait_for()


async def findings(page: Page) -> list[str]:
    """What axe-core finds of serious and critical weight, each with the element."""
    report: dict[str, Any] = await Axe().run(page)
    return [
        f"{found['id']}: {found['help']}: {node['html'][:200]}"
        for found in report["violations"]
        if found["impact"] in SERIOUS
        for node in found["nodes"][:3]
    ]


async def overflows(page: Page) -> bool:
    """Whether the page is wider than its window, so that a person has to scroll sideways."""
    return bool(await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"))


PICTURES: Final = os.environ.get("SCREENSHOTS", "")
"""The folder for pictures (`make screenshots`); empty where none are made. Tests may then do more, so that pages have more to show."""
COLOURS: Final = 256
"""Of a picture: its most frequent ones, so that grounds and thin lines keep theirs. It has a third of the bytes then."""


async def screenshot(page: Page, name: str, *, whole: bool = True) -> None:
    """Keep a picture for the docs in `PICTURES`.

    Args:
        whole: the whole page, and not only what the window shows of it.
    """
    if PICTURES:
        # imported only here: tests without pictures need no Pillow
        from PIL import Image

        taken = Image.open(io.BytesIO(await page.screenshot(full_page=whole))).convert("RGB")
        colours: Any = sorted(taken.getcolors(taken.width * taken.height) or [], reverse=True)[:COLOURS]
        palette = Image.new("P", (1, 1))
        palette.putpalette([part for _, colour in colours for part in colour])
        taken.quantize(palette=palette, dither=Image.Dither.NONE).save(Path(PICTURES) / f"{name}.png", optimize=True)
