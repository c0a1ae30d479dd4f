"""Signing in to the console at an identity provider: the whole way over HTTP with cookies, each way in which it fails, and a person who
does it in a real browser. The provider is another site than the console, as in real life: `localhost` beside `127.0.0.1`."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from backends.simengine import SimEngine
from tests.browser import chromium, console_page, findings, screenshot
from tests.e2e.test_backend_commands import SIM
from tests.e2e.test_serve import SETTINGS, Served, serving
from tests.provider import CLIENT, SECRET, OpenIdProvider, provider
from tests.timing import HANG_S
from tests.valkey_servers import free_port

OWN = {"x-tidegate-console": "1"}
LABEL = "Example Login"


@dataclass
class SignInWorld:
    """A gateway whose console signs people in at a provider."""

    served: Served
    idp: OpenIdProvider
    client: httpx.AsyncClient
    """A browser of this test: it keeps cookies and follows no redirect by itself."""

    async def to_provider(self) -> str:
        """The provider's address, to which the console sends a browser."""
        begun = await self.client.get("/console/sign-in")
        assert begun.status_code == 303, begun.text
        return begun.headers["location"]

    async def back_from(self, where: str) -> str:
        """The console's address, to which the provider sends the browser once the person has agreed."""
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as at_provider:
            back = await at_provider.post(where)
        assert back.status_code == 303, back.text
        return back.headers["location"]

    async def refused(self, address: str, status: int) -> str:
        """The words of the page at the console's address."""
        page = await self.client.get(address)
        assert page.status_code == status, page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert "tidegate_session" not in self.client.cookies
        found = re.search(r'role="alert">(.*?)</p>', page.text)
        assert found is not None
        return found.group(1)


@asynccontextmanager
async def sign_in_world(home: Path, host: str = "localhost") -> AsyncIterator[SignInWorld]:
    port = free_port()
    redirect_url = f"http://127.0.0.1:{port}/console/callback"
    (home / "client-secret").write_text(SECRET)
    (home / "token").write_text("an-admin-token-of-32-characters!")
    async with provider(redirect_url, host) as idp, SimEngine(SIM) as engine:
        entry = {
            "issuer": idp.url,
            "audiences": [CLIENT],
            "tenant": {"claim": ["tenant"]},
            "roles": {"claim": ["groups"], "map": {"llm-operators": "operator"}},
        }
        console = {
            "issuer": idp.url,
            "client_id": CLIENT,
            "client_secret": {"file": "client-secret"},
            "redirect_url": redirect_url,
            "label": LABEL,
        }
        settings = SETTINGS.replace('admin: {{bind: "127.0.0.1:0"}}', f'admin: {{{{bind: "127.0.0.1:{port}"}}}}')
        more = (
            f"auth: {json.dumps({'jwt': [entry], 'console': console})}\nsecrets: {{admin_token: {{file: token}}}}\nlog: {{level: debug}}\n"
        )
        async with serving(home, engine.url, settings=settings, more=more) as served:
            async with httpx.AsyncClient(base_url=served.admin, trust_env=False, timeout=HANG_S) as client:
                person = {"authorization": f"Bearer {idp.token()}"}
                async with asyncio.timeout(HANG_S):  # the directory and the provider's keys are read after the start
                    while (early := await client.get("/admin/v1/self", headers=person)).status_code != 200:
                        assert early.status_code == 503, early.text
                        await asyncio.sleep(0.05)
                yield SignInWorld(served, idp, client)


async def test_a_person_signs_in_works_and_signs_out(tmp_path: Path) -> None:
    async with sign_in_world(tmp_path) as world:
        assert (await world.client.get("/console/session")).json() == {"provider": LABEL}
        where = await world.to_provider()
        assert where.startswith(f"{world.idp.url}/authorize?")
        address = await world.back_from(where)
        done = await world.client.get(address)
        assert (done.status_code, done.headers["location"]) == (303, "/console/")
        (session, over) = done.headers.get_list("set-cookie")
        assert re.search(r"Max-Age=(\d+); HttpOnly; SameSite=Strict$", session), session
        assert 500 <= int(re.search(r"Max-Age=(\d+)", session)[1]) <= 600, "no longer than the token"  # type: ignore[index]
        assert over.startswith("tidegate_sign_in=; Path=/console/; Max-Age=0; HttpOnly; SameSite=Lax")
        me = (await world.client.get("/admin/v1/self", headers=OWN)).json()
        assert (me["actor"][:4], me["roles"]) == ("jwt:", ["operator"])
        assert (await world.client.get("/admin/v1/self")).status_code == 403, "without the console's header"

        # the same address once more: the browser has no cookie of the sign-in any more
        world.client.cookies.delete("tidegate_session")
        assert "finished already" in await world.refused(address, 400)

        again = await world.client.get(await world.back_from(await world.to_provider()))
        assert again.status_code == 303
        assert (await world.client.delete("/console/session", headers=OWN)).status_code == 204
        assert (await world.client.get("/admin/v1/self", headers=OWN)).status_code == 401
        afresh = await world.client.get("/console/sign-in?afresh")
        assert "prompt=login" in afresh.headers["location"], "after a sign-out the provider asks again"
        given, referers = world.idp.given, [headers.get("referer") for _, _, headers in world.idp.asked]
        assert len(given) == 2
        assert referers == [None] * len(referers)
        world.served.process.terminate()
        await asyncio.to_thread(world.served.process.wait, HANG_S)
    said = (tmp_path / "out.log").read_text() + (tmp_path / "err.log").read_text()
    assert "console.sign_in" in said
    assert [secret for token in given for secret in (token, *token.split(".")[1:]) if secret in said] == []
    assert [text for text in (SECRET, "code-0", "person-1", where.partition("state=")[2][:20]) if text in said] == []


async def test_each_failure_is_said_on_the_page(tmp_path: Path) -> None:
    async with sign_in_world(tmp_path) as world:
        idp, client = world.idp, world.client
        other = (await client.get("/console/sign-in", headers={"host": "console.example.com"})).text
        assert f"sends people back to {world.served.admin.partition('//')[2]}" in other

        address = await world.back_from(await world.to_provider())
        foreign = re.sub(r"state=[^&]*", "state=another", address)
        assert "belongs to another sign-in" in await world.refused(foreign, 400)
        assert "finished already" in await world.refused(address, 400), "a wrong answer ends the sign-in"

        # a thief with cookie and address: the provider redeems a code once
        address = await world.back_from(await world.to_provider())
        stolen = client.cookies.get("tidegate_sign_in")
        assert stolen is not None
        assert (await client.get(address)).status_code == 303
        client.cookies.delete("tidegate_session")
        client.cookies.set("tidegate_sign_in", stolen, domain="127.0.0.1", path="/console/")
        assert "takes the code no more" in await world.refused(address, 400)

        address = await world.back_from(await world.to_provider())
        assert "another identity provider" in await world.refused(re.sub(r"iss=[^&]*", "iss=https%3A%2F%2Fevil.example", address), 400)

        idp.error = "access_denied"
        assert "it was cancelled there" in await world.refused(await world.back_from(await world.to_provider()), 403)
        idp.error = "<script>alert(1)</script>"
        assert "script" not in await world.refused(await world.back_from(await world.to_provider()), 403)
        idp.error = ""

        idp.claims = {"groups": ["somebody"], "tenant": "acme"}
        assert "you have no role here" in await world.refused(await world.back_from(await world.to_provider()), 403)
        idp.claims = {"groups": ["llm-operators"], "tenant": "globex"}
        assert "does not accept the token" in await world.refused(await world.back_from(await world.to_provider()), 403)
        idp.claims = {"groups": ["llm-operators", "x" * 3000], "tenant": "acme"}
        assert "a session holds 2800" in await world.refused(await world.back_from(await world.to_provider()), 403)
        idp.claims = {"groups": ["llm-operators"], "tenant": "acme"}

        idp.in_body = True
        assert "client_secret" in await world.refused(await world.back_from(await world.to_provider()), 502)
        idp.in_body = False

        address = await world.back_from(await world.to_provider())
        idp.away = True
        assert "Try again shortly" in await world.refused(address, 503)


async def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    async with sign_in_world(tmp_path) as world:
        world.idp.lifetime_s = 3.0
        begun = time.time()
        done = await world.client.get(await world.back_from(await world.to_provider()))
        value = re.match(r"tidegate_session=([^;]+)", done.headers.get_list("set-cookie")[0])
        assert value is not None
        kept = {"cookie": f"tidegate_session={value[1]}", **OWN}
        assert (await world.client.get("/admin/v1/self", headers=kept)).status_code == 200
        answers: list[Any] = []
        async with asyncio.timeout(HANG_S):
            while not answers or answers[-1].status_code == 200:
                await asyncio.sleep(0.1)
                async with httpx.AsyncClient(base_url=world.served.admin, trust_env=False, timeout=HANG_S) as fresh:
                    answers.append(await fresh.get("/admin/v1/self", headers=kept))
        assert time.time() - begun >= 2.9
        assert (answers[-1].status_code, answers[-1].json()["error"]["code"]) == (401, "session_over")


@pytest.mark.browser
async def test_a_person_signs_in_at_the_provider_in_a_browser_and_is_back_where_they_were(tmp_path: Path) -> None:
    async with sign_in_world(tmp_path) as world, chromium() as browser, console_page(browser, world.served.admin) as page:
        await page.goto(f"{world.served.admin}/console/#/overload")
        button = page.get_by_role("link", name=f"Sign in with {LABEL}")
        await button.wait_for()
        assert await findings(page) == []
        await screenshot(page, "sign-in-provider")
        await button.click()
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_role("heading", name="Overload")).to_be_visible()
        assert page.url == f"{world.served.admin}/console/#/overload"
        await expect(page.get_by_text("operator", exact=False).first).to_be_visible()
        await page.get_by_role("button", name="Sign out").click()

        world.idp.claims = {"groups": ["somebody"], "tenant": "acme"}
        await button.click()
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_role("alert")).to_contain_text("you have no role here")
        assert await findings(page) == []
        await screenshot(page, "sign-in-refused")
        await page.get_by_role("link", name="Back to the sign-in page").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert [headers.get("referer") for path, form, headers in world.idp.asked if path == "/authorize" and "prompt" not in form][:1] == [
            None
        ]
