"""`tidegate cache warm` against a whole gateway with a simulated engine: what it keeps is what requests then hit."""

import asyncio
import json
from pathlib import Path
from typing import Any

from backends.simengine import SimEngine, SimSettings
from gateway.cli import app
from gateway.cli.cache_warm import KEY_VARIABLE
from tests.command_line import Commands, Result
from tests.gateway_harness import Gateway, chat, gateway
from tests.timing import hang_s

POLICY: dict[str, Any] = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "cache": {}}


def question(text: str, **fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": text}], **{"temperature": 0, "max_tokens": 500, **fields})


def written(folder: Path, *lines: dict[str, Any]) -> str:
    file = folder / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return str(file)


async def warm(running: Gateway, file: str, *arguments: str, key: str | None = None) -> Result:
    """The command, in a thread, because the gateway runs in the loop of the test; `--url` unless the arguments name a settings file."""
    environ = {KEY_VARIABLE: running.keys["acme"] if key is None else key, "COLUMNS": "200"}
    line = ["cache", "warm", file, *arguments, *(() if "-c" in arguments else ("--url", running.url))]
    return await asyncio.wait_for(asyncio.to_thread(Commands().invoke, app, line, env=environ), hang_s())


async def test_what_was_warmed_is_hit_and_what_was_not_is_said_with_its_line(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        question("one"),
        {"custom_id": "two", "method": "POST", "url": "/v1/chat/completions", "body": question("two", stream=True)},
        question("one"),
        question("cut", max_tokens=1),
        question("sampled", temperature=1),
        {"model": "sim", "input": ["a", "b"]},
        question("unknown", model="nothing"),
    )
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, gateway(engine.url, policies=(POLICY,)) as running:
        done = await warm(running, file, "--parallel", "1")
        assert done.exit_code == 1, done.output
        hit, kept, not_kept, bypassed, failed, failure = done.stdout.splitlines()
        assert hit.split() == ["1", "answered", "from", "the", "cache", "already"]
        assert kept.split() == ["3", "asked", "and", "kept"]
        assert not_kept.strip() == "1 asked and not kept: length 1 (line 4)"
        assert bypassed.strip() == "1 passed by the cache: sampled 1 (line 5)"
        assert failed.split() == ["1", "failed"]
        assert failure.strip().startswith("line 7: 404 model_not_found: ")
        assert "--greedy sets temperature 0" in done.stderr
        assert "tidegate cache stats" in done.stderr
        assert engine.count == 5

        async with running.client() as client:
            for path, body in (
                ("chat/completions", question("one")),
                ("chat/completions", question("two")),
                ("chat/completions", question("two", stream=True)),
                ("embeddings", {"model": "sim", "input": ["b", "a"]}),
            ):
                reply = await client.post(f"/v1/{path}", json=body)
                assert (reply.status_code, reply.headers["x-tidegate-cache"]) == (200, "hit-exact"), body
        assert engine.count == 5


async def test_a_second_run_asks_no_engine_and_a_greedy_one_keeps_what_samples(tmp_path: Path) -> None:
    file = written(tmp_path, *(question(str(number), temperature=0.5) for number in range(30)))
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, gateway(engine.url, policies=(POLICY,)) as running:
        first = await warm(running, file, "--greedy", "--json", "--parallel", "8", "--namespace", "v2")
        assert first.exit_code == 0, first.output
        counts = json.loads(first.stdout)
        assert (counts["requests"], counts["kept"], counts["failures"], counts["notes"]) == (30, 30, [], [])
        again = await warm(running, file, "--greedy", "--json", "--namespace", "v2")
        assert (json.loads(again.stdout)["hit"], engine.count) == (30, 30)
        elsewhere = await warm(running, file, "--greedy", "--json", "--no-check")
        assert (json.loads(elsewhere.stdout)["unchecked"], engine.count) == (30, 60)


async def test_without_headers_or_without_a_cache_the_command_says_so(tmp_path: Path) -> None:
    file = written(tmp_path, question("one"), question("two"))
    for change, count, note in (
        ({"expose_headers": False}, "unknown", "`expose_headers: true`"),
        ({"cache": None}, "no_cache", ""),
    ):
        policy = {name: value for name, value in {**POLICY, **change}.items() if value is not None}
        async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, gateway(engine.url, policies=(policy,)) as running:
            done = await warm(running, file, "--json")
            counts = json.loads(done.stdout)
            assert (done.exit_code, counts[count], engine.count) == (0, 2, 2), done.output
            assert any(note in said for said in counts["notes"]) == bool(note)


async def test_a_wrong_key_is_said_once_and_the_rest_is_not_sent(tmp_path: Path) -> None:
    file = written(tmp_path, *(question(str(number)) for number in range(30)))
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, gateway(engine.url, policies=(POLICY,)) as running:
        done = await warm(
            running,
            file,
            key="gw_wrong",
        )
        assert (done.exit_code, engine.count) == (1, 0), done.output
        (line,) = done.stdout.splitlines()
        assert line.strip().startswith("30 not sent, or not waited for: 401 ")


async def test_workers_with_answers_of_their_own_are_mentioned_last(tmp_path: Path) -> None:
    file, settings = written(tmp_path, question("one")), tmp_path / "settings.yaml"
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, gateway(engine.url, policies=(POLICY,)) as running:
        settings.write_text(f'workers: 3\ndata: {{bind: "0.0.0.0:{running.port}"}}\n')
        done = await warm(running, file, "-c", str(settings), "--no-check")
        assert done.exit_code == 0, done.output
        assert done.stdout.strip() == "1 asked; whether their answers were kept is not known"
        assert "tidegate cache stats" in done.stderr.splitlines()[0]
        assert done.stderr.splitlines()[-1].startswith("the 3 workers keep answers of their own")
