"""The routes of a sign-in at a provider: none without one, cookies for TLS alone, and pages under the policy of the console."""

from pathlib import Path

import httpx
import msgspec
from fastapi import FastAPI

from gateway.console.files import console_router
from gateway.console.provider_routes import ProviderAccess
from gateway.console.session import SessionSeal
from tests.admin_harness import admin_port
from tests.unit.gateway.console.test_oidc import CLIENT, World


async def nobody(_token: str) -> bool:
    return False


async def everybody(_token: str) -> bool:
    return True


def console(parts: object, access: ProviderAccess | None) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(console_router(parts.authenticator, SessionSeal(parts.pepper.secret, parts.entropy, parts.wall), access))  # type: ignore[attr-defined]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://gate.example.com")


async def test_without_a_provider_the_console_offers_none(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin, console(admin.parts, None) as client:
        assert (await client.get("/console/session")).json() == {"provider": None}
        for path in ("/console/sign-in", "/console/callback"):
            assert (await client.get(path)).status_code == 404


async def test_cookies_are_for_tls_alone_where_the_console_is_behind_it(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin:
        async with console(admin.parts, ProviderAccess(World().flow(), nobody)) as client:
            begun = await client.get("/console/sign-in")
            assert begun.status_code == 303
            assert begun.headers["set-cookie"].endswith("Path=/console/; Max-Age=600; HttpOnly; SameSite=Lax; Secure")
            assert begun.headers["referrer-policy"] == "no-referrer"
            assert begun.headers["cache-control"] == "no-store"


async def test_a_token_without_a_role_is_told_apart_from_one_that_is_not_accepted(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin:
        for known, words in ((nobody, "does not accept the token"), (everybody, "you have no role here")):
            world = World()
            async with console(admin.parts, ProviderAccess(world.flow(), known)) as client:
                begun = await client.get("/console/sign-in")
                query = httpx.URL(begun.headers["location"]).params
                world.nonce = query["nonce"]
                client.cookies.set("tidegate_sign_in", begun.cookies["tidegate_sign_in"], domain="gate.example.com", path="/console/")
                page = await client.get("/console/callback", params={"code": "c", "state": query["state"]})
                assert page.status_code == 403
                assert words in page.text
                assert page.headers["set-cookie"].startswith("tidegate_sign_in=; ")
                assert "<script" not in page.text
                assert page.headers["content-security-policy"].startswith("default-src 'none'")


async def test_what_a_request_says_stays_text(tmp_path: Path) -> None:
    flow = World(msgspec.structs.replace(CLIENT)).flow()
    async with admin_port(tmp_path) as admin, console(admin.parts, ProviderAccess(flow, nobody)) as client:
        page = await client.get("/console/sign-in", headers={"host": "<script>alert(1)</script>"})
        assert page.status_code == 421
        assert "<script>" not in page.text
        assert 'href="https://gate.example.com/console/"' in page.text
