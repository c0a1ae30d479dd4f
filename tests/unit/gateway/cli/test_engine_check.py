import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.launch.engine_facts import COMPLETION, METRICS, MODELS, VLLM_EVENTS, VLLM_INFO
from gateway.cli import app
from tests.command_line import Commands, Result

RECORDED = Path(__file__).parents[3] / "wire" / "engine_launch"


def recording(kind: str = "") -> dict[str, bytes]:
    files = {MODELS: "models.json", METRICS: "cache_config.txt", VLLM_INFO: "server_info.json", COMPLETION: "completion.json"}
    replies = {path: (RECORDED / f"vllm-0.32.0-{kind}{file}").read_bytes() for path, file in files.items()}
    replies[METRICS] += (RECORDED.parent / "engine_metrics" / "vllm-0.32.0.txt").read_bytes().replace(b"vllm:cache_config_info", b"other")
    return {**replies, VLLM_EVENTS: b"{}" if kind else (RECORDED / "vllm-0.32.0-kv_event_sources.json").read_bytes()}


@contextmanager
def engine(replies: dict[str, bytes], key: str | None = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = replies.get(self.path, b"")
            refused = key is not None and self.headers.get("authorization") != f"Bearer {key}"
            self.send_response(401 if refused else 200 if self.path in replies else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return Commands(env={"COLUMNS": "250", **(env or {})}).invoke(app, ["engine", "check", *arguments])


def test_an_engine_started_by_its_configuration_passes() -> None:
    with engine(recording()) as url:
        result = run(url, "--launch", "vllm-cpu-test")
    assert result.exit_code == 0
    assert "WRONG" not in result.stdout
    assert "?" not in result.stdout


def test_each_wrong_flag_is_named_with_its_mend() -> None:
    with engine(recording("wrong-")) as url:
        result = run(url, "--launch", "vllm-cpu-test")
        found = json.loads(run(url, "--launch", "vllm-cpu-test", "--json").stdout)
    assert result.exit_code == 1
    wrong = {one["what"] for one in found["engines"][0]["findings"] if one["state"] == "wrong"}
    assert wrong == {
        "served name",
        "context length",
        "hash algorithm",
        "block size",
        "KV events",
        "usage details",
        "sequences at once",
        "queue limit",
        "priority",
        "adapter slots",
    }
    assert result.stdout.count("WRONG") == len(wrong)


def test_what_cannot_be_read_is_said_and_does_not_fail() -> None:
    replies = recording()
    del replies[VLLM_INFO]
    with engine(replies) as url:
        result = run(url, "--launch", "vllm-cpu-test", "--no-probe")
    assert result.exit_code == 0
    assert "?     priority: cannot be read" in result.stdout
    assert "?     usage details: cannot be read: no answer of one token was asked for" in result.stdout


def test_the_backends_of_a_settings_file_have_the_name_of_their_pool_and_one_block_size(tmp_path: Path) -> None:
    with engine(recording()) as one, engine(recording("wrong-")) as other:
        backends = f'[{{id: a, url: "{one}"}}, {{id: b, url: "{other}"}}, {{id: c, url: "http://127.0.0.1:1"}}]'
        (tmp_path / "policies").mkdir()
        (tmp_path / "tidegate.yaml").write_text(f"pools: [{{name: p, model: tiny, backends: {backends}}}]\n")
        result = run("-c", str(tmp_path / "tidegate.yaml"))
    assert result.exit_code == 1
    first, second, third = re_split(result.stdout)
    assert "WRONG" not in first
    assert "the pool asks for tiny: start it with --served-model-name tiny" in second
    assert "64 tokens; 32 is needed, as everywhere in the pool" in second
    assert "refuses connections: nothing listens there; start the engine" in third


def re_split(text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            found[-1] += line + "\n"
        else:
            found.append(line + "\n")
    return found


def test_a_key_is_asked_for_and_given() -> None:
    with engine(recording(), key="k") as url:
        assert "name the variable that holds it with --api-key-env" in run(url).stdout
        assert run(url, "--api-key-env", "ENGINE_KEY", env={"ENGINE_KEY": "k"}).exit_code == 0
        assert run(url, "--api-key-env", "NO_SUCH_KEY").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["http://127.0.0.1:1", "--dialect", "other"], 2, "--dialect 'other' is unknown"),
        (["engine:8000"], 2, "write http://host:port"),
        (["ftp://engine"], 2, "write http://host:port"),
        (["http://engine:99999"], 2, "write http://host:port"),
        (["-c", "none.yaml"], 1, "none.yaml"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert says in result.output


@pytest.mark.parametrize(
    ("dialect", "replies", "says"),
    [
        ("vllm", {MODELS: b"<html>hello</html>"}, "answers HTML, not an engine's JSON"),
        ("vllm", {MODELS: b"{}"}, "does not answer with a model list"),
        ("vllm", {}, "/v1/models answers 404: there is no such path"),
        ("vllm", {MODELS: b'{"data": [{"id": "m"}]}'}, "this does not look like a vllm engine"),
        ("vllm", {MODELS: b'{"data": [{"id": "m"}]}', METRICS: b"go_threads 3\n"}, "this does not look like a vllm engine"),
        ("sglang", recording(), "this does not look like a sglang engine"),
        ("tgi", recording(), "this does not look like a tgi engine"),
    ],
)
def test_what_is_no_engine_of_the_dialect_is_a_mismatch(dialect: str, replies: dict[str, bytes], says: str) -> None:
    with engine(replies) as url:
        result = run(url, "--dialect", dialect)
    assert result.exit_code == 1
    assert says in result.stdout
    assert result.stdout.count("WRONG") == 1


def test_a_tokenizer_in_the_folder_that_the_engine_names_is_told_with_what_to_write(tmp_path: Path) -> None:
    replies = recording()
    listed = json.loads(replies[MODELS])
    for card in listed["data"]:
        card["root"] = str(tmp_path)
    replies[MODELS] = json.dumps(listed).encode()
    with engine(replies) as url:
        assert "tokenizer" not in run(url, "--launch", "vllm-cpu-test").stdout, "nothing is said of a folder without one"
        (tmp_path / "tokenizer.json").write_text("{}")
        result = run(url, "--launch", "vllm-cpu-test")
        config = tmp_path / "tidegate.yaml"
        pool = f"pools: [{{name: p, model: m, backends: [{{id: b, url: {url}}}], tokenizer: o200k_base}}]"
        config.write_text(pool)
        named = run("--config", str(config))
    assert result.exit_code == 0
    assert (
        f"tokenizer: the engine's model is {tmp_path}, which has a tokenizer here; write tokenizer: {tmp_path} in its pool" in result.stdout
    )
    assert "which has a tokenizer here" not in named.stdout, "the pool names one"


DIGEST = "sha256:" + "ab" * 32
PINNED = """
pools:
  - {{name: chat, model: tiny, revision: {revision}, pinned: {{digest: "{digest}"}}, backends: [{{id: gpu-0, url: "{url}"}}]}}
"""


@pytest.fixture
def registry(tmp_path: Path) -> Callable[..., Result]:
    """Runs commands on a database that has the revision tiny@v1, and on settings with one pinned pool."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.pepper").write_text("0" * 64)
    config = tmp_path / "tidegate.yaml"

    def command(*arguments: str, url: str = "http://127.0.0.1:9", revision: str = "v1", digest: str = DIGEST) -> Result:
        config.write_text(PINNED.format(url=url, revision=revision, digest=digest))
        return Commands(env={"COLUMNS": "250"}).invoke(app, [*arguments, "-c", str(config), "--offline"])

    made = command("model", "register", "tiny@v1", "/models/tiny", "--digest", DIGEST, "--context", "1024")
    assert made.exit_code == 0, made.output
    return command


def of_registry(result: Result) -> list[tuple[str, str]]:
    (found,) = json.loads(result.stdout)["engines"]
    return [(one["state"], one["text"]) for one in found["findings"] if one["what"] == "registry"]


def proving() -> dict[str, bytes]:
    """An engine that proves tiny@v1."""
    (model,) = json.loads(recording()[MODELS])["data"]
    listed = [model, {**model, "id": "tiny@sha256-abababababab"}]
    return {**recording(), MODELS: json.dumps({"object": "list", "data": listed}).encode()}


def test_an_engine_of_a_retired_revision_is_wrong(registry: Callable[..., Result]) -> None:
    check = ("engine", "check", "--revision", "tiny@v1", "--json")
    with engine(proving()) as url:
        before = registry(*check, url)
        assert (before.exit_code, of_registry(before)) == (0, [])
        assert registry("model", "retire", "tiny@v1", "--yes", revision="v2").exit_code == 0
        for asked in ((url,), (url, "--launch", "vllm-cpu-test")):
            after = registry(*check, *asked)
            ((state, text),) = of_registry(after)
            assert (after.exit_code, state) == (1, "wrong")
            assert text.startswith("tiny@v1 is retired since 20")
            assert "serve another revision" in text


def test_a_pool_that_is_pinned_with_another_digest_is_wrong(registry: Callable[..., Result]) -> None:
    other = "sha256:" + "cd" * 32
    check = ("engine", "check", "--revision", "tiny@v1", "--json")
    with engine(proving()) as url:
        result = registry(*check, url=url, digest=other)
        assert of_registry(registry(*check, url=url)) == []
        assert of_registry(registry(*check, url=url, revision="v0", digest=other)) == [], "another revision has another digest"
    ((state, text),) = of_registry(result)
    assert (result.exit_code, state) == (1, "wrong")
    assert text.startswith(f"pool chat is pinned to tiny@v1 with {other}, and the registry has {DIGEST}")


def test_a_launch_configuration_is_compared_as_the_revision_is_served(registry: Callable[..., Result]) -> None:
    with engine(proving()) as url:
        result = registry("engine", "check", url, "--revision", "tiny@v1", "--launch", "vllm-cpu-test", "--json")
        alone = json.loads(registry("engine", "check", url, "--launch", "vllm-8b", "--json").stdout)
        other = registry("engine", "check", url, "--revision", "tiny@v1", "--launch", "vllm-70b-tp4")
    assert result.exit_code == 0, result.stdout
    context = [one["state"] for one in alone["engines"][0]["findings"] if one["what"] == "context length"]
    assert context == ["wrong"], "the launch configuration's own context is 32,768"
    assert "tiny@v1 is registered for tensor parallelism 1, and --tensor-parallel-size is 4" in other.stderr


def test_an_engine_is_compared_wherever_its_weights_came_from(registry: Callable[..., Result]) -> None:
    places = ("s3://models/tiny", "--tokenizer", "s3://models/tokenizer")
    made = registry("model", "register", "tiny@v2", *places, "--digest", DIGEST, "--context", "1024")
    assert made.exit_code == 0, made.output
    with engine(proving()) as url:
        result = registry("engine", "check", url, "--revision", "tiny@v2", "--launch", "vllm-cpu-test")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
