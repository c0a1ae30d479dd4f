import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cli import app
from gateway.cli.explain import summary
from gateway.placement.decisions import Ended
from tests.admin_harness import EXPLAINED, TOKEN
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands


@pytest.fixture
def served(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as admin:
        yield admin


def shown(ended: Ended) -> dict[str, Any]:
    return {"ended": msgspec.structs.asdict(ended)}


def run(served: AdminSocket, *arguments: str) -> tuple[int, str]:
    done = Commands().invoke(app, ["explain", *arguments, "--admin", served.url], env={"TIDEGATE_ADMIN_TOKEN": TOKEN, "COLUMNS": "60"})
    return done.exit_code, done.output


def test_a_decision_is_shown_with_every_term_and_why_losers_lost(served: AdminSocket) -> None:
    code, text = run(served, "req-1")
    assert code == 0
    for part in (
        "sim in pool chat by predicted_latency",
        "1000 prompt tokens, 15 blocks",
        "    queue_s 0.1",
        "taken",
        "costs 0.2 more (queue_s +0.2)",
        "960",
    ):
        assert part in text
    code, text = run(served, "req-1", "--json")
    assert json.loads(text)["contenders"][1]["lost"] == "costs 0.2 more (queue_s +0.2)"


def test_how_it_ended_is_said() -> None:
    ended = Ended("ok", 200, 1.2345, 0.25, 0.4, 1000, 640, 33)
    lines = summary(msgspec.structs.asdict(msgspec.structs.replace(EXPLAINED, cache="miss")) | shown(ended))
    assert lines[-1] == (
        "ended: ok with status 200 after 1.23 s, 250 ms of it in the queue, first token after 0.4 s; "
        "1000 prompt tokens (640 cached), 33 tokens of answer; cache: miss"
    )
    assert summary(msgspec.structs.asdict(EXPLAINED))[-1] == "how it ended is not known: it still runs, or its worker ended first"
    would_be = msgspec.structs.replace(EXPLAINED, request_id="supposed")
    assert not any("ended" in line for line in summary(msgspec.structs.asdict(would_be)))


def test_what_guard_rules_said_stands_before_the_end() -> None:
    ended = Ended("guard_blocked", 400, 0.002, 0.0, None, 0, 0, 0)
    said = "block by keys in input; found keys:aws_key:block:input=1"
    reason = "refused by guard rules; no backend was asked"
    refused = msgspec.structs.replace(EXPLAINED, policy="", pool="", contenders=(), reason=reason, guards=said, cache="")
    lines = summary(msgspec.structs.asdict(refused) | shown(ended))
    assert lines[1:3] == [reason, f"guard rules: {said}"]
    assert lines[3].startswith("ended: guard_blocked with status 400")


def test_a_hit_of_the_cache_is_no_decision() -> None:
    ended = Ended("ok", 200, 0.002, 0.0, None, 0, 0, 0)
    hit = msgspec.structs.replace(EXPLAINED, pool="", policy="", chosen="", contenders=(), cache="hit-exact", cache_age_s=12.4, ended=ended)
    lines = summary(msgspec.structs.asdict(hit) | shown(ended))
    assert lines[0].endswith(": sim")
    assert lines[1] == "answered from the cache (hit-exact) with an answer that was 12 s old; no backend was asked"
    assert lines[2].startswith("ended: ok with status 200 after 0.002 s")


def test_what_it_was_given_instead_is_said() -> None:
    steps, passed_over = ("trim_output_tokens", "model=sim"), ("model=tiny: the caller may not use it",)
    found = msgspec.structs.replace(EXPLAINED, asked_model="big", steps=steps, passed_over=passed_over)
    assert summary(msgspec.structs.asdict(found))[3:5] == [
        "degraded by the policy of acme: trim_output_tokens, model=sim; asked for big",
        "not degraded to model=tiny: the caller may not use it",
    ]
    assert not any("degraded" in line for line in summary(msgspec.structs.asdict(EXPLAINED)))


def test_one_that_nobody_remembers_says_so(served: AdminSocket) -> None:
    nothing = "No decision about that request is kept: it is too old, or it was refused before it was placed."
    assert run(served, "req-2", "--tenant", "acme") == (1, f"{nothing}\n")
    assert run(served, "req-1", "--tenant", "bolt") == (1, f"{nothing}\n")
    assert run(served, "mine") == (1, f"{nothing} An id that the caller chose is found with its tenant.\n")


def test_a_callers_own_id_is_found_with_its_tenant(served: AdminSocket) -> None:
    code, text = run(served, "mine", "--tenant", "acme")
    assert (code, "its caller's own id: mine" in text) == (0, True)


@pytest.mark.parametrize("text", ["why is it slow", "a/b", "..", "req-1?x", "é", "x" * 65])
def test_text_that_is_no_id_is_refused_before_anybody_is_asked(served: AdminSocket, text: str) -> None:
    code, said = run(served, text)
    assert (code, "is no request id: an id has 1 to 64 letters" in said, "route" in said) == (2, True, False)


def test_a_request_that_nobody_sends_is_placed(served: AdminSocket, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"model": "sim", "messages": []}')
    for tenant in ("acme", "bolt", "away"):
        served.run("tenant", "create", tenant)
    assert "chosen: f" in run(served, "--file", str(file), "--tenant", "acme")[1]
    assert run(served, "--file", str(file), "--tenant", "bolt") == (1, "The policy of tenant 'bolt' has no model 'sim'.\n")
    assert run(served, "--file", str(file), "--tenant", "away")[0] == 1


@pytest.mark.parametrize("arguments", [(), ("req-1", "--file", "x"), ("--file", "/nowhere"), ("--file", __file__)])
def test_wrong_usage_is_said(served: AdminSocket, arguments: tuple[str, ...]) -> None:
    assert run(served, *arguments)[0] == 2
