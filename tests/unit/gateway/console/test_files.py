"""The console's files: what is sent with them, what is vendored, and what the pages must not do."""

import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from gateway.console.files import STATIC, console_router, static_files
from gateway.console.session import COOKIE, HEADER, MAX_CREDENTIAL_CHARS, SessionSeal
from tests.admin_harness import TOKEN, Admin, admin_port

VENDORED = {
    "preact-htm.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
OWN = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with admin_port(tmp_path) as admin:
        yield console_over(admin)


def console_over(admin: Admin) -> httpx.AsyncClient:
    app = FastAPI()
    parts = admin.parts
    app.include_router(console_router(parts.authenticator, SessionSeal(parts.pepper.secret, parts.entropy, parts.wall)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin")


def test_vendored_libraries_are_those_that_were_reviewed() -> None:
    found = {name: sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() for name in VENDORED}
    assert found == VENDORED
    assert {path.name for path in (STATIC / "vendor").iterdir()} == {*VENDORED, "LICENCES.txt"}


def test_every_file_is_known_by_its_type() -> None:
    kinds = {path.rpartition(".")[2]: file.content_type for path, file in static_files().items()}
    assert kinds["js"].startswith("text/javascript")
    assert kinds["css"].startswith("text/css")
    assert kinds["html"].startswith("text/html")
    assert kinds["svg"] == "image/svg+xml"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_page_writes_markup_from_text_or_asks_another_host(path: Path) -> None:
    text = path.read_text()
    for forbidden in ("innerHTML", "dangerouslySetInnerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in text, forbidden
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_every_import_names_a_file_that_is_there(path: Path) -> None:
    for name in re.findall(r'from "(\.[^"]+)"', path.read_text()):
        assert (path.parent / name).resolve().is_file(), name


async def test_files_carry_a_policy_that_allows_this_port_alone(client: httpx.AsyncClient) -> None:
    page = await client.get("/console/")
    assert page.status_code == 200
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert page.headers["x-content-type-options"] == "nosniff"
    again = await client.get("/console/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get("/console")).headers["location"] == "/console/"


@pytest.mark.parametrize("path", ["none.js", "../session.py", "%2e%2e/session.py", "vendor/../../files.py"])
async def test_nothing_outside_the_folder_is_sent(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(f"/console/{path}")).status_code == 404


async def test_signing_in_takes_a_credential_that_counts(client: httpx.AsyncClient) -> None:
    own = {HEADER: "1"}
    done = await client.post("/console/session", json={"token": TOKEN}, headers=own)
    assert (done.status_code, done.json()["roles"]) == (200, ["owner"])
    assert TOKEN not in done.headers["set-cookie"]
    assert done.headers["set-cookie"].startswith(f"{COOKIE}=")
    wrong = await client.post("/console/session", json={"token": "wrong"}, headers=own)
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    foreign = await client.post("/console/session", json={"token": TOKEN})
    assert (foreign.status_code, "set-cookie" in foreign.headers) == (403, False)
    long = await client.post("/console/session", json={"token": "x" * (MAX_CREDENTIAL_CHARS + 1)}, headers=own)
    assert (long.status_code, long.json()["error"]["param"]) == (400, "token")
    over = await client.delete("/console/session", headers=own)
    assert (over.status_code, "Max-Age=0" in over.headers["set-cookie"]) == (204, True)
