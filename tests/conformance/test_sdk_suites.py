"""The official SDKs' own tests of their resources, unmodified, against a gateway (`make test-conformance`).

The tests come with the SDKs' source packages (`sdists.txt`). They send every parameter that the SDK has, and validate each reply against
its types. A test that fails has to be in `NOT_HERE` with its reason, and every reason has to be needed. What passed is in
`docs/reference/clients.md`; `WRITE=1` writes it there.
"""

import asyncio
import os
import re
import shutil
import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from backends.simengine import SimEngine, SimSettings
from domain.files import StorageBounds
from tenancy.responses import ResponseSealer
from tenancy.stores.sql import SqlConversations, SqlResponses, open_engine
from tests.databases import migrated_file
from tests.gateway_harness import PEPPER, gateway
from tests.stored_files import file_service

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLIENTS = ROOT / ".venv-clients"
PAGE = ROOT / "docs" / "reference" / "clients.md"
WITHIN_S = 600

MODELS: Final = (
    *("gpt-6-astra", "gpt-3.5-turbo-instruct", "text-embedding-3-small", "omni-moderation-2024-09-26", "gpt-4o-mini", "model", "string"),
    *("claude-opus-5-5", "claude-mythos-preview", "model_id"),
)
"""Names that the tests ask for; all are served by the simulated engine."""

SUITES: Final = {
    "openai": (
        "test_completions.py",
        "chat/test_completions.py",
        "chat/completions/test_messages.py",
        "test_embeddings.py",
        "test_models.py",
        "test_moderations.py",
        "test_responses.py",
        "responses/test_input_items.py",
        "responses/test_input_tokens.py",
        "test_conversations.py",
        "conversations/test_items.py",
        "test_files.py",
        "test_uploads.py",
        "uploads/test_parts.py",
        "test_batches.py",
        "audio/test_speech.py",
        "audio/test_transcriptions.py",
        "audio/test_translations.py",
    ),
    "anthropic": ("test_messages.py", "test_models.py", "beta/test_messages.py", "beta/test_models.py"),
}

ROOM: Final = {"bounds": StorageBounds(files=100_000, bytes=10**9), "max_open_batches": 10_000}

_BACKGROUND = "what the test does is for Responses in the background, which it has not made"
_NO_LIMIT = "the test sends `limit: 0`, which is below the API's own bound"
_NO_NAME = "the test's recording has no name, whose end tells the format"
_MOCK = "a mock of the SDK answers the test, not a server"
NOT_HERE: Final = {
    "openai": {
        r"chat/completions/test_messages.py": "the SDK's type says that all messages of a request are the assistant's",
        r"chat/test_completions.py .*_list_with_all_params": _NO_LIMIT,
        r"test_responses.py .*_(retrieve|cancel)(_|$)": _BACKGROUND,
        r"responses/test_input_items.py .*_list_with_all_params": _NO_LIMIT,
        r"responses/test_input_tokens.py .*_count": "the test names no model, or a conversation that is stored",
        r"conversations/test_items.py .*_list_with_all_params": _NO_LIMIT,
        r"test_(files|batches).py .*_list_with_all_params": _NO_LIMIT,
        r"test_files.py .*_content": _MOCK,
        r"test_uploads.py .*_create": "the test announces 0 bytes, which is below the API's own bound",
        r"test_uploads.py .*_complete": "the test names a part that nobody uploaded",
        r"test_batches.py .*_create": "the test names a file that nobody uploaded",
        r"audio/test_speech.py": _MOCK,
        r"audio/test_(transcriptions|translations).py .*_create": _NO_NAME,
        r"test_responses.py .*_compact(_|$)": "conversations are not compacted",
        r"test_responses.py .*_create_overload_\d": "the test sends no input, which only an earlier response could stand in for",
        r"test_responses.py .*_create_with_all_params": "`context_management` and hosted tools are refused by name",
        r"test_completions.py .*_create_with_all_params": "the test sends `best_of: 0`, which is below the API's own bound",
        r"test_models.py .*_delete(_|$)": "models are the operator's",
        r"test_embeddings.py .*_create$": "the client asks for base64 by itself, and its types have numbers alone",
    },
    "anthropic": {
        r"test_messages.py .*_deprecated_model_warning": "the test asks for a model by each name that was ever deprecated",
        r"(beta/)?test_messages.py .*_create_with_all_params": "`container` and `mcp_servers` are refused by name",
        r"beta/test_messages.py .*_count_tokens_with_all_params": "`mcp_servers` is refused by name",
    },
}
"""By SDK, what of its tests fails, as an expression over file and function, and why."""

pytestmark = pytest.mark.client


class Ran(NamedTuple):
    """The tests of one SDK, each as its file and function; one function runs several times, plain and async, loose and strict."""

    passed: list[str]
    failed: list[str]
    said: str


@asynccontextmanager
async def _state(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """The stores of Responses, chats and conversations."""
    database = open_engine(f"sqlite:///{folder / 'files.db'}")
    sealer = ResponseSealer([PEPPER], os.urandom)
    try:
        yield {"responses": SqlResponses(database, sealer, time.time), "conversations": SqlConversations(database, sealer, time.time)}
    finally:
        await database.dispose()


async def _run(sdk: str, folder: Path) -> Ran:
    (source,) = (CLIENTS / "sdists").glob(f"{sdk}-*/tests")
    tests = folder / "tests"
    tests.mkdir()
    for name in ("api_resources", "utils.py", "__init__.py", *(one.name for one in source.glob("respx2"))):
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy
        copy(source / name, tests / name)
    shutil.copy(HERE / "sdk_conftest.py", tests / "conftest.py")
    stored = folder / "stored"
    stored.mkdir()
    await migrated_file(stored / "files.db")
    async with (
        SimEngine(SimSettings(models=("sim",), speed=2000)) as engine,
        file_service(stored, **ROOM) as files,
        _state(stored) as state,
    ):
        policy = {"tenant": "*", "models": [{"name": name, "pool": "chat"} for name in MODELS], "responses": {}}
        async with gateway(engine.url, policies=(policy,), files=files, **state) as running:
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TEST_SDK": sdk,
                "TEST_API_BASE_URL": running.url + ("/v1" if sdk == "openai" else ""),
                "TEST_API_KEY": running.keys["acme"],
            }
            settings = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session"]
            options = [
                "-q",
                "-p",
                "no:cacheprovider",
                *(word for one in settings for word in ("-o", one)),
                "--tb=line",
                "--junitxml=ran.xml",
            ]
            child = await asyncio.create_subprocess_exec(
                *(str(CLIENTS / "bin" / "python"), "-m", "pytest", *options, *(f"tests/api_resources/{name}" for name in SUITES[sdk])),
                env=environment,
                cwd=folder,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                said, _ = await asyncio.wait_for(child.communicate(), WITHIN_S)
            finally:
                if child.returncode is None:
                    child.kill()
    passed: list[str] = []
    failed: list[str] = []
    for case in ET.parse(folder / "ran.xml").iter("testcase"):
        file, _, test_class = case.attrib["classname"].removeprefix("tests.api_resources.").rpartition(".")
        name = f"{file.replace('.', '/')}.py {test_class}.{case.attrib['name'].partition('[')[0]}"
        if case.find("skipped") is None:
            ended_well = case.find("failure") is None and case.find("error") is None
            (passed if ended_well else failed).append(name)
    return Ran(passed, failed, said.decode())


def _reason(sdk: str, name: str) -> str | None:
    return next((reason for pattern, reason in NOT_HERE[sdk].items() if re.match(pattern, name)), None)


@pytest.mark.parametrize("sdk", SUITES)
async def test_the_suite_of_an_sdk(sdk: str, tmp_path: Path) -> None:
    ran = await _run(sdk, tmp_path)
    strange = sorted({name for name in ran.failed if _reason(sdk, name) is None})
    assert strange == [], f"{chr(10).join(strange)}\n{ran.said[-4000:]}"
    for pattern, reason in NOT_HERE[sdk].items():
        assert any(re.match(pattern, name) for name in ran.failed), f"no test of {pattern!r} fails any more: remove “{reason}”"
    row = _row(sdk, ran)
    page = PAGE.read_text("utf-8")
    if os.environ.get("WRITE"):
        PAGE.write_text(re.sub(rf"^\| `{sdk}` [\d.]+ \|.*$", lambda _: row, page, flags=re.MULTILINE), "utf-8")
    else:
        assert row in page, f"{PAGE.name} says something else: run `make test-conformance WRITE=1`"


def _row(sdk: str, ran: Ran) -> str:
    """The row of the table."""
    pinned = re.search(rf"^{sdk}==([\d.]+)", (HERE / "sdists.txt").read_text("utf-8"), re.MULTILINE)
    assert pinned is not None
    reasons: dict[str, int] = {}
    for name in ran.failed:
        reason = _reason(sdk, name)
        assert reason is not None
        reasons[reason] = reasons.get(reason, 0) + 1
    told = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
    return f"| `{sdk}` {pinned[1]} | {len(ran.passed)} | {told} |"
