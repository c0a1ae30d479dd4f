import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.lora.digest import lora_digest
from gateway.cli import app
from tests.command_line import Commands, Result
from tests.unit.gateway.cli.test_backends import admin

SETTINGS = """
pools:
  - name: chat
    model: m
    loras:
      - {name: support, digest: AA, path: /adapters/support}
      - {name: sales, digest: BB, path: /adapters/sales}
    backends: [{id: gpu-0, url: "http://10.0.0.1:8000"}, {id: gpu-1, url: "http://10.0.0.2:8000"}]
""".replace("AA", "aa" * 32).replace("BB", "bb" * 32)


def run(*arguments: str) -> Result:
    return Commands(env={"COLUMNS": "200"}).invoke(app, ["lora", *arguments])


def test_the_digest_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    result = run("digest", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, lora_digest(tmp_path) + "\n")


def test_no_adapter_there(tmp_path: Path) -> None:
    result = run("digest", str(tmp_path))
    assert result.exit_code == 1
    assert "there is no adapter_config.json" in result.stderr


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    return str(tmp_path / "tidegate.yaml")


def test_what_is_registered_and_where_it_is_loaded(config: str) -> None:
    old, new = "support@000000000000", "support@" + "aa" * 6
    fleet = [
        {"pool": "chat", "backend": "gpu-0", "up": True, "loras": [new, old]},
        {"pool": "chat", "backend": "gpu-1", "up": True, "loras": [new]},
    ]
    with admin(200, json.dumps({"backends": fleet}).encode()) as url:
        result = run("list", "-c", config, "--admin", url)
        assert result.exit_code == 0, result.output
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "@" in line]
        assert rows == [
            ["sales", "chat", "bb" * 6, "sales@" + "bb" * 6, "-"],
            ["support", "chat", "aa" * 6, new, "gpu-0, gpu-1"],
            ["-", "chat", "-", old, "gpu-0"],
        ]
        listed = json.loads(run("list", "-c", config, "--admin", url, "--json").stdout)
        assert [(row["lora"], row["digest"], row["backends"]) for row in listed] == [
            ("sales", "bb" * 32, []),
            ("support", "aa" * 32, ["gpu-0", "gpu-1"]),
            ("", "", ["gpu-0"]),
        ]


def test_trouble_is_said(config: str) -> None:
    nobody = run("list", "-c", config, "--admin", "http://127.0.0.1:1")
    assert (nobody.exit_code, "no gateway answers at" in nobody.stderr) == (1, True)
    broken = run("list", "-c", "/nonexistent/tidegate.yaml")
    assert broken.exit_code == 1
    assert "cannot be read" in broken.stderr


@contextlib.contextmanager
def answering(replies: dict[tuple[str, str], tuple[int, bytes]], asked: list[tuple[str, str, bytes]]) -> Iterator[str]:
    """An admin port with these replies; `asked` gets method, path and body of every request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            asked.append((self.command, self.path, body))
            status, content = replies.get((self.command, self.path), (404, b""))
            self.send_response(status)
            if status != 204:
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _reply

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def with_token(*arguments: str) -> Result:
    environ = {"COLUMNS": "200", "TIDEGATE_ADMIN_TOKEN": "a-token-of-more-than-24-characters"}
    return Commands(env=environ).invoke(app, ["lora", *arguments])


def test_an_adapter_is_registered_with_the_digest_of_its_folder_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    asked: list[tuple[str, str, bytes]] = []
    replies = {("POST", "/admin/v1/adapters"): (201, b"{}"), ("DELETE", "/admin/v1/adapters/chat/bot"): (204, b"")}
    with answering(replies, asked) as url:
        made = with_token("create", "bot", str(tmp_path), "--pool", "chat", "--admin", url)
        assert (made.exit_code, made.stdout) == (0, "adapter bot of pool chat registered; gateways use it within 5 s\n"), made.output
        told = with_token("create", "bot", "/adapters/bot", "--pool", "chat", "--digest", "ab" * 32, "--admin", url)
        assert told.exit_code == 0, told.output
        gone = with_token("delete", "bot", "--pool", "chat", "--yes", "--admin", url)
        assert (gone.exit_code, "engines keep it until its slot is needed" in gone.stdout) == (0, True), gone.output
        count = len(asked)
        nothing = with_token("create", "bot", str(tmp_path / "nothing"), "--pool", "chat", "--admin", url)
        assert (nothing.exit_code, "nothing" in nothing.stderr, len(asked)) == (1, True, count)
    assert [(method, path) for method, path, _ in asked] == [("POST", "/admin/v1/adapters")] * 2 + [
        ("DELETE", "/admin/v1/adapters/chat/bot")
    ]
    expected = {"pool": "chat", "name": "bot", "digest": lora_digest(tmp_path), "path": str(tmp_path)}
    assert [json.loads(body) for _, _, body in asked[:2]] == [expected, {**expected, "digest": "ab" * 32, "path": "/adapters/bot"}]


def test_registered_adapters_are_listed_where_some_may_be(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS.replace("    model: m\n", "    model: m\n    lora_folder: /adapters\n"))
    one = {"pool": "chat", "digest": "cc" * 32, "path": "/adapters/bot", "source": "registered"}
    items = [{**one, "name": "bot"}, {**one, "name": "sales"}, {**one, "name": "old", "pool": "gone"}]
    fleet = [{"pool": "chat", "backend": "gpu-0", "up": True, "loras": ["bot@" + "cc" * 6]}]
    replies = {
        ("GET", "/backends"): (200, json.dumps({"backends": fleet}).encode()),
        ("GET", "/admin/v1/adapters"): (200, json.dumps({"items": items}).encode()),
    }
    with answering(replies, []) as url:
        result = with_token("list", "-c", str(tmp_path / "tidegate.yaml"), "--admin", url, "--json")
    assert result.exit_code == 0, result.output
    assert [(row["lora"], row["source"], row["digest"][:2], row["backends"]) for row in json.loads(result.stdout)] == [
        ("bot", "registered", "cc", ["gpu-0"]),
        ("sales", "static", "bb", []),
        ("support", "static", "aa", []),
    ]
