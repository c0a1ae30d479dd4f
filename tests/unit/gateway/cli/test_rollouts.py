"""Commands on rollouts, against a real admin port."""

import re
from collections.abc import Iterator
from math import log
from pathlib import Path

import msgspec
import pytest

from gateway.cli import app
from policies.rollout.progress import tick
from policies.rollout.samples import METRICS, ArmSums, Interval, Scale, Tally
from policies.rollout.state import read, state_text
from tenancy.stores.sql import SqlRolloutStore
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands
from tests.unit.gateway.rollouts.test_aborts import Gateway

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "reference" / "rollouts.md").read_text()
EXAMPLES = re.findall(r"```yaml[^\n]*\n(name: .*?)```", PAGE, re.DOTALL)
SETTINGS = """pools:
- {name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}
- {name: chat-v2, model: m, backends: [{id: b, url: "http://10.0.0.2:8000"}]}
- {name: chat-short, model: m, backends: [{id: c, url: "http://10.0.0.3:8000"}]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somewhere without a settings file."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def port(tmp_path: Path, here: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as made:
        yield made


def written(text: str) -> Path:
    Path("rollout.yaml").write_text(text)
    return Path("rollout.yaml")


DOCUMENT = "name: v2\nbaseline: chat\ncanary: chat-v2\nwarm_up_s: 0.0\nwarm_up_requests: 0\nmargins: {itl: 0.05}\n"


def check(*arguments: object) -> tuple[int, str]:
    done = Commands().invoke(app, ["rollout", "check", *map(str, arguments)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_pages_examples_are_what_they_are_said_to_be(here: Path) -> None:
    assert len(EXAMPLES) == 3
    Path("tidegate.yaml").write_text(SETTINGS)
    (here / "policies").mkdir()
    (here / "prompts").mkdir()
    assert "is no version of a prompt there" in check(written(EXAMPLES[2]))[1]
    for version in (2, 3):
        text = f"id: customer_support\nversion: {version}\nmessages:\n  - {{role: system, content: Be kind.}}\n"
        (here / "prompts" / f"customer_support@{version}.yaml").write_text(text)
    said = [check(written(text)) for text in EXAMPLES]
    assert [code for code, _ in said] == [0, 0, 0]
    assert [text.split(":")[0] for _, text in said] == ["ok, rollout chat-v2", "ok, experiment shorter-answers", "ok, rollout help-2"]
    assert "shadow: 200 requests" in said[0][1]
    assert "waits to be promoted" in said[0][1]


def test_the_page_has_every_metric_with_its_margin() -> None:
    for metric in METRICS.values():
        margin = f"{100 * metric.margin:g} {'points' if metric.scale is Scale.SHARE else '%'}"
        assert re.search(rf"^\| `{metric.name}` \| .* \| {margin} \|$", PAGE, re.MULTILINE), metric.name


def test_mistakes_in_a_file_are_told_with_line_and_key(here: Path) -> None:
    code, said = check(written("name: v2\nbaseline: chat\ncanry: chat-v2\nalpha: 2\n"))
    assert code == 1
    assert "rollout.yaml:3:1: canry: is no known key; did you mean canary?" in said
    assert "rollout.yaml:4" in said
    code, said = check(written(DOCUMENT + "steps: [{share: 0.5}, {share: 0.2}]\n"))
    assert (code, "shares have to grow from step to step" in said) == (1, True)
    Path("tidegate.yaml").write_text(SETTINGS)
    (here / "policies").mkdir()
    lora = "name: chat, loras: [{name: sql, digest: " + "a" * 64 + ", path: /adapters/sql}]"
    Path("tidegate.yaml").write_text(SETTINGS.replace("name: chat,", f"{lora},", 1))
    code, said = check(written(DOCUMENT))
    assert (code, "rollout.yaml:3:1: canary: pool 'chat-v2' lacks adapter 'sql', which pool 'chat' has" in said) == (1, True)
    Path("tidegate.yaml").write_text(SETTINGS)
    code, said = check(written(DOCUMENT.replace("canary: chat-v2", "canary: nowhere")))
    assert (code, "rollout.yaml:3:1: canary: is no pool of the settings; there are: chat, chat-short, chat-v2" in said) == (1, True)


def test_adapters_that_only_the_gateway_knows_are_a_note(here: Path) -> None:
    """What `start` takes because an adapter is registered is not refused, and what it may refuse is not accepted without a word."""
    (here / "policies").mkdir()
    sql = ", loras: [{name: sql, digest: " + "a" * 64 + ", path: /adapters/sql}]"
    takes = ", lora_folder: /adapters"

    def checked(baseline: str, canary: str) -> tuple[int, str]:
        settings = SETTINGS.replace("name: chat,", f"name: chat{baseline},", 1).replace("name: chat-v2,", f"name: chat-v2{canary},", 1)
        Path("tidegate.yaml").write_text(settings)
        return check(written(DOCUMENT))

    code, said = checked(sql, takes)
    assert (code, "note: pool 'chat-v2' has no adapter 'sql', which pool 'chat' has, in the settings; adapters registered" in said) == (
        0,
        True,
    )
    code, said = checked(takes, "")
    assert (code, "note: adapters registered over the admin API for pool 'chat' are not known here; start refuses" in said) == (0, True)
    code, said = checked(sql + takes, "")
    assert (code, "lacks adapter 'sql'" in said) == (1, True), "a pool that takes no registrations can have none"
    for baseline, canary in ((sql, sql), ("", takes), (sql, sql + takes)):
        code, said = checked(baseline, canary)
        assert (code, "note: " in said.replace("note: 0 requests", "")) == (0, False), said


def test_a_rollout_from_its_start_to_its_end(port: AdminSocket) -> None:
    table = port.run("rollout", "list", "--csv")
    assert table.stdout.startswith("name,baseline,canary,status,share,"), table.output
    none = port.run("rollout", "list")
    assert none.output == "no rollout is in force\n"
    refused = port.run("rollout", "start", written(DOCUMENT + "weight: 3\n"))
    assert (refused.exit_code, "rollout.yaml:7:1: weight: is no known key" in refused.output) == (1, True)
    started = port.run("rollout", "start", written(DOCUMENT))
    assert started.exit_code == 0, started.output
    assert started.output.startswith("v2: chat -> chat-v2, running, 1 % of the conversations, phase 1 of 5 for 0 s; see")
    for what, expected in (("pause", "v2: chat -> chat-v2, paused"), ("resume", "running"), ("promote", "running, 5 % of")):
        done = port.run("rollout", what, "v2")
        assert (done.exit_code, expected in done.output) == (0, True), done.output
    wrong = port.run("rollout", "resume", "v2")
    assert (wrong.exit_code, "a rollout that is running cannot be resumed" in wrong.output) == (1, True)
    assert port.run("rollout", "abort", "v2").exit_code == 2  # no reason
    done = port.run("rollout", "abort", "v2", "--reason", "wrong weights")
    assert done.output.splitlines()[1] == "  aborted: wrong weights"
    over = port.run("rollout", "list", "--closed")
    assert re.fullmatch(r"v2: chat -> chat-v2, rolled back .* ago\n", over.output)
    assert port.json("rollout", "list", "--closed")[0]["reason"] == "aborted: wrong weights"


def test_an_abort_without_the_database_says_what_is_left_to_do(port: AdminSocket, tmp_path: Path) -> None:
    gateway = Gateway(port.admin, tmp_path / "aborted")
    port.within(gateway.start())
    gateway.away = True
    done = port.run("rollout", "abort", "v2", "--reason", "wrong weights")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "v2: the database is away; this gateway sends its traffic to chat now and writes it down later",
        "  ask every other gateway on the database too: it goes on until the database is back",
    ]
    assert port.run("rollout", "pause", "v2").exit_code == 1


def test_status_says_what_is_found_of_each_metric(port: AdminSocket) -> None:
    port.run("rollout", "start", written(DOCUMENT))
    store = SqlRolloutStore(port.admin.engine)
    (one,) = port.within(store.in_force())
    found, state = read(one), read(one).state
    sums = ArmSums(60, {"itl": Tally(60, 60 * log(0.012))})
    state = tick(found.plan, state, port.admin.wall.now + 20, [Interval(state.next_interval + 1, sums, sums)]).state
    assert port.within(store.write(msgspec.structs.replace(one, state=state_text(state))))
    said = port.run("rollout", "show", "v2").output.splitlines()
    assert "60 requests of the canary counted in this phase, which asks for 50; 60 in all; 20 s of at most 4 h" in said[1]
    assert said[2:] == [
        "  last change: started",
        "  undecided: inter-token latency 12.0 ms against 12.0 ms: too early to say, after 60 requests",
    ]
    assert port.json("rollout", "show", "v2")["findings"][0]["requests"] == 60


@pytest.mark.slow
def test_one_that_is_done_is_closed_once_somebody_says_that_policies_name_the_canary(port: AdminSocket) -> None:
    port.run("rollout", "start", written(DOCUMENT))
    early = port.run("rollout", "close", "v2", "--yes")
    assert (early.exit_code, "promote it until it is done, or abort it" in early.output) == (1, True)
    for _ in range(4):
        done = port.run("rollout", "promote", "v2")
    assert "done, 100 % of the conversations" in done.output
    assert port.run("rollout", "close", "v2").exit_code == 1  # nobody answered the question
    assert "closed" in port.run("rollout", "close", "v2", "--yes").output
    assert port.run("rollout", "list").output == "no rollout is in force\n"
