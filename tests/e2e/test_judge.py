"""A whole gateway with two workers and a simulated judge: answers are scored, arms of a rollout are compared, within the day's tokens."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.judge.agreement import labelled_cases
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_serve import SETTINGS, Served, serving
from tests.timing import HANG_S

OWNER = {"authorization": f"Bearer {TOKEN}"}
MORE = """
  - name: chat-v2
    model: sim
    backends: [{{id: c0, url: "{canary}"}}]
  - name: judges
    model: sim
    backends: [{{id: j0, url: "{judge}"}}]
secrets: {{admin_token: {{file: token}}}}
judge: {{tenant: ops, model: judge, look_every_s: 0.1, tokens_per_day: {tokens}}}
"""
POLICY = """tenant: "*"
models:
  - {name: sim, pool: chat}
  - {name: judge, pool: judges}
request_log: {content: [prompt, answer]}
judge: {share: 1.0, pair_share: 1.0, rubric: "A good answer is not safe."}
"""
ROLLOUT = {
    "name": "worse",
    "baseline": "chat",
    "canary": "chat-v2",
    "steps": [{"share": 0.5, "min_s": 600.0, "max_s": 3600.0}, {"share": 1.0}],
    "warm_up_s": 0.0,
    "warm_up_requests": 0,
    "settle_s": 0.0,
    "interval_s": 1.0,
    "min_samples": 5,
    "margins": {"judged": 0.05, "output_tokens": 9.0, "itl": 9.0, "ttft": 9.0, "token_cost": 9.0, "refusals": 0.9},
}
PLAIN = SimSettings(models=("sim",), speed=2000)
SAFE = SimSettings(models=("sim",), speed=2000, guard={"never said": "S1"})
"""An engine that answers `safe` to everything."""
JUDGE = SimSettings(models=("sim",), speed=2000, judge={"safe": 1})


async def ask(client: httpx.AsyncClient, served: Served, **fields: Any) -> httpx.Response:
    body = {"model": "sim", "messages": [{"role": "user", "content": "say a word to ann@acme.example"}], "max_tokens": 8, **fields}
    return await client.post(f"{served.url}/v1/chat/completions", json=body, headers=served.headers)


async def ratings(client: httpx.AsyncClient, served: Served) -> list[dict[str, Any]]:
    reply = await client.get(f"{served.admin}/admin/v1/feedback?source=judge&limit=200", headers=OWNER)
    return list(reply.json()["items"])


async def series(client: httpx.AsyncClient, served: Served, beginning: str) -> dict[str, float]:
    """The series of the metrics page that begin so, those of zero left out."""
    text = (await client.get(f"{served.admin}/metrics", headers=OWNER)).text
    found = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(beginning)]
    return {name: float(value) for name, value in found if float(value)}


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANG_S):
        while not await holds():
            await asyncio.sleep(0.1)


def settings_with(more: str) -> str:
    return SETTINGS.rstrip() + more.replace("{", "{{").replace("}", "}}")


def with_ops(home: Path) -> None:
    (home / "token").write_text(TOKEN)


async def add_ops(served: Served) -> None:
    made = await asyncio.to_thread(command, served, "tenant", "create", "ops")
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("answers", ["plain", pytest.param("safe", marks=pytest.mark.slow)])
async def test_answers_are_scored_and_booked_on_the_operators_tenant(tmp_path: Path, answers: str) -> None:
    with_ops(tmp_path)
    async with SimEngine(PLAIN if answers == "plain" else SAFE) as engine, SimEngine(PLAIN) as canary, SimEngine(JUDGE) as judge:
        more = MORE.format(canary=canary.url, judge=judge.url, tokens=10**6)
        async with (
            serving(tmp_path, engine.url, workers=2, settings=settings_with(more), policy=POLICY) as served,
            httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
        ):
            await add_ops(served)
            replies = [await ask(client, served) for _ in range(3)]
            ids = {reply.headers["x-tidegate-request-id"] for reply in replies}

            async def scored() -> bool:
                return len(await ratings(client, served)) >= 3

            await eventually(scored)
            found = await ratings(client, served)
            assert {one["request_id"] for one in found} == ids, "its own requests are not judged"
            score, rating = (5, "up") if answers == "plain" else (1, "down")
            assert {(one["tenant"], one["score"], one["rating"]) for one in found} == {("acme", score, rating)}
            asked = "\n".join(received.body.decode() for received in judge.received if "chat" in received.path)
            assert "ann@acme.example" not in asked and "[EMAIL]" in asked
            assert "A good answer is not safe." in asked
            assert await series(client, served, "tidegate_judge_scores_total") == {
                f'tidegate_judge_scores_total{{model="sim",score="{score}",tenant="acme"}}': 3.0
            }

            async def booked() -> bool:
                rows = (await client.get(f"{served.admin}/admin/v1/usage?by=tenant&by=model", headers=OWNER)).json()["items"]
                of = {(row["labels"]["tenant"], row["labels"]["model"]): row["requests"] for row in rows}
                return of.get(("ops", "judge")) == 3 and of.get(("acme", "sim")) == 3 and len(of) == 2

            await eventually(booked)


@pytest.mark.slow
async def test_the_days_tokens_bound_the_judge(tmp_path: Path) -> None:
    with_ops(tmp_path)
    async with SimEngine(PLAIN) as engine, SimEngine(PLAIN) as canary, SimEngine(JUDGE) as judge:
        more = MORE.format(canary=canary.url, judge=judge.url, tokens=1).replace("tokens_per_day: 1", "tokens_per_day: 1, max_in_flight: 1")
        async with (
            serving(tmp_path, engine.url, workers=2, settings=settings_with(more), policy=POLICY) as served,
            httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
        ):
            await add_ops(served)
            for _ in range(6):
                await ask(client, served)

            async def all_counted() -> bool:
                samples = await series(client, served, "tidegate_judge_samples_total")
                return sum(samples.values()) >= 6

            await eventually(all_counted)
            assert await series(client, served, "tidegate_judge_samples_total") == {
                'tidegate_judge_samples_total{outcome="over_budget"}': 5.0,
                'tidegate_judge_samples_total{outcome="scored"}': 1.0,
            }, "one was begun with tokens left"
            assert len([received for received in judge.received if "chat" in received.path]) == 1


@pytest.mark.slow
async def test_a_canary_whose_answers_lose_goes_back_by_the_judge(tmp_path: Path) -> None:
    with_ops(tmp_path)
    async with SimEngine(PLAIN) as engine, SimEngine(SAFE) as canary, SimEngine(JUDGE) as judge:
        more = MORE.format(canary=canary.url, judge=judge.url, tokens=10**7)
        async with (
            serving(tmp_path, engine.url, workers=2, settings=settings_with(more), policy=POLICY) as served,
            httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
        ):
            await add_ops(served)
            started = await client.post(f"{served.admin}/admin/v1/rollouts", json=ROLLOUT, headers=OWNER)
            assert started.status_code == 201, started.text

            async def over() -> bool:
                await asyncio.gather(*(ask(client, served) for _ in range(8)))
                shown = (await client.get(f"{served.admin}/admin/v1/rollouts/worse", headers=OWNER)).json()
                return bool(shown["status"] == "rolled back")

            await eventually(over)
            shown = (await client.get(f"{served.admin}/admin/v1/rollouts/worse", headers=OWNER)).json()
            assert shown["reason"].startswith("comparisons lost 1e+02 % against 0 %"), shown["reason"]
            pairs = await series(client, served, "tidegate_judge_pairs_total")
            assert pairs.keys() == {'tidegate_judge_pairs_total{better="baseline",model="sim"}'}


PROMPT = """id: help
version: {version}
variables: {{question: {{type: string}}}}
messages:
  - {{role: system, content: "Answer at once."}}
  - {{role: user, content: "{{{{ question }}}}{words}"}}
"""
PROMPTS_POLICY = POLICY + "prompts: [{id: help, versions: [{version: 1, weight: 1}, {version: 2, weight: 0}]}]\n"
OF_PROMPT = ROLLOUT | {"name": "help-2", "of": "prompt", "baseline": "help@1", "canary": "help@2"}
ANSWERS = SimSettings(models=("sim",), speed=2000, guard={"in riddles": "S1"})
"""An engine that answers `unsafe` to whom asks for riddles, else `safe`."""


@pytest.mark.slow
@pytest.mark.parametrize("words", [" Answer in riddles.", " Be brief."])
async def test_a_version_of_a_prompt_whose_answers_lose_goes_back_by_the_judge(tmp_path: Path, words: str) -> None:
    with_ops(tmp_path)
    (tmp_path / "prompts").mkdir()
    for version, said in ((1, ""), (2, words)):
        (tmp_path / "prompts" / f"help@{version}.yaml").write_text(PROMPT.format(version=version, words=said))
    worse = "riddles" in words
    judge_settings = SimSettings(models=("sim",), speed=2000, judge={"unsafe": 1})
    async with SimEngine(ANSWERS) as engine, SimEngine(PLAIN) as canary, SimEngine(judge_settings) as judge:
        more = MORE.format(canary=canary.url, judge=judge.url, tokens=10**7)
        async with (
            serving(tmp_path, engine.url, workers=2, settings=settings_with(more), policy=PROMPTS_POLICY) as served,
            httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
        ):
            await add_ops(served)
            started = await client.post(f"{served.admin}/admin/v1/rollouts", json=OF_PROMPT, headers=OWNER)
            assert started.status_code == 201, started.text
            prompt = {"id": "help", "variables": {"question": "Am I ann@acme.example?"}}

            async def shown() -> dict[str, Any]:
                return dict((await client.get(f"{served.admin}/admin/v1/rollouts/help-2", headers=OWNER)).json())

            async def over() -> bool:
                replies = await asyncio.gather(*(ask(client, served, prompt=prompt, messages=[]) for _ in range(8)))
                assert {reply.status_code for reply in replies} == {200}
                if worse:
                    return bool((await shown())["status"] == "rolled back")
                return sum((await series(client, served, "tidegate_judge_pairs_total")).values()) >= 60

            await eventually(over)
            found = await shown()
            pairs = await series(client, served, "tidegate_judge_pairs_total")
            better = "baseline" if worse else "tie"
            assert pairs.keys() == {f'tidegate_judge_pairs_total{{better="{better}",model="sim"}}'}
            if worse:
                assert found["reason"].startswith("comparisons lost 1e+02 % against 0 %"), found["reason"]
            else:
                assert found["status"] == "running"
                assert all(finding["judgement"] != "worse" for finding in found["findings"])
            asked = [json.loads(received.body) for received in judge.received if "chat" in received.path]
            compared = [body["messages"][1]["content"] for body in asked if "You compare two answers" in body["messages"][0]["content"]]
            assert compared and not any("riddles" in text or "brief" in text for text in compared), "the judge reads neither version"
            assert all("question" in text and "[EMAIL]" in text and "ann@" not in text for text in compared)


@pytest.mark.slow
async def test_the_judge_measures_its_agreement_itself_and_every_gateway_shows_it(tmp_path: Path) -> None:
    with_ops(tmp_path)
    words = {"33": 1, "Porto": 1, "invents": 2}
    async with SimEngine(PLAIN) as engine, SimEngine(SimSettings(models=("sim",), speed=2000, judge=words)) as judge:
        more = MORE.format(canary=engine.url, judge=judge.url, tokens=10**7).replace("judge: {", "judge: {agreement_every_days: 7, ")
        async with (
            serving(tmp_path, engine.url, workers=2, settings=settings_with(more), policy=POLICY) as served,
            httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
        ):
            await add_ops(served)

            async def shown() -> dict[str, float]:
                return await series(client, served, "tidegate_judge_agreement_ratio")

            await eventually(shown)
            found = await shown()
            assert found['tidegate_judge_agreement_ratio{kind="scores",model="judge"}'] == pytest.approx(14 / 24)
            asked = [received for received in judge.received if "chat" in received.path]
            assert len(asked) == 24 + 2 * 16, "each case once, by one of two workers"
            used = await series(client, served, "tidegate_judge_tokens_total")
            assert used["tidegate_judge_tokens_total"] > 5000


def agreement(served: Served, *arguments: str) -> "subprocess.CompletedProcess[str]":
    key = served.headers["authorization"].removeprefix("Bearer ")
    return subprocess.run(
        [sys.executable, "-m", "gateway", "judge", "agreement", "--url", served.url, *arguments],
        env={"PATH": "/usr/bin", "TIDEGATE_API_KEY": key, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


async def test_agreement_with_the_labelled_cases_is_reported(tmp_path: Path) -> None:
    with_ops(tmp_path)
    words = {"33": 1, "Porto": 1, "invents": 2}
    async with SimEngine(SimSettings(models=("sim",), speed=2000, judge=words)) as judge, serving(tmp_path, judge.url) as served:
        done = await asyncio.to_thread(agreement, served, "--model", "sim", "--json")
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert (figures["cases"], figures["unreadable"], figures["failed_good"]) == (len(labelled_cases()), 0, 0)
        assert figures["passed_bad"] == 10, "it knows two of twelve bad answers"
        assert figures["score_agreement"] == pytest.approx(14 / 24)
        said = await asyncio.to_thread(agreement, served, "--model", "sim")
        assert "of 24 scored answers it agrees on 58%" in said.stdout
        assert "10 bad ones passed" in said.stdout
        unknown = await asyncio.to_thread(agreement, served, "--model", "other")
        assert (unknown.returncode, "the model did not answer: 404" in unknown.stderr) == (1, True)
