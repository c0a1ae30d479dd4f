"""Files that people write: a set of policies or settings, or errors with file, line and key; never a traceback, never a secret."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import read_settings
from policies.load import load_policies
from policies.prompts.folder import PromptFolder
from policies.prompts.template import TooLong
from policies.prompts.variables import VariableRefused
from policies.yaml.problems import ConfigError, Problem
from tests.fuzz.mutation import Target

CANARY = "canary-of-the-environment"
ENVIRON = {"SECRET": CANARY, "EMPTY": "", "NUMBER": "5"}
POOLS = ("chat", "chat-small", "embeddings")
"""Of the examples."""
EXAMPLES = Path(__file__).parents[2] / "policies" / "examples"
YAML = [
    b"\n",
    b"  ",
    b"    ",
    b"- ",
    b": ",
    b":",
    b"#",
    b"'",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b"&a ",
    b"*a",
    b"*a\n",
    b"<<: *a\n",
    b"!!python/object:os.system ",
    b"!!binary ",
    b"!x ",
    b"---\n",
    b"...\n",
    b"%YAML 1.1\n",
    b"|\n  x\n",
    b">-\n",
    b"? ",
    b"~",
    b"null",
    b"true",
    b"yes",
    b".inf",
    b".nan",
    b"1e999",
    b"0x10",
    b"1_000",
    b"2001-01-01",
    b"12:30:45",
    b"\t",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"${SECRET}",
    b"${EMPTY}",
    b"${MISSING}",
    b"${",
    b"$${SECRET}",
    b"[" * 50,
    b"{a: " * 40,
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    b"\\",
    b"key: value\n",
]
POLICY_WORDS = [
    b"tenant: ",
    b'tenant: "*"\n',
    b"models:\n",
    b"- {name: a, pool: chat}\n",
    b"pool: nowhere\n",
    b"lora: x\n",
    b"routing: ",
    b"priority: 2\n",
    b"alias_of: a\n",
    b"pools: [{pool: chat, weight: 1}, {pool: embeddings, weight: 0}]\n",
    b"for_project:\n",
    b"for_model: {a: {priority: 0.5}}\n",
    b"degrade: [{trim_output_tokens: 9, after_s: 1}, {model: a}, queue, refuse]\n",
    b"parameters: {temperature: {max: 1}}\n",
    b"rules:\n",
    b"- {name: r, models: [a], if: stream, share: 0.5, then: {model: a}}\n",
    b"if: '",
    b" && ",
    b'headers["x-team"] == "a"',
    b'model.matches("^(a+)+$")',
    b'now.getHours("Europe/Nowhere") > 5',
    b"metadata.all(k, metadata.all(l, k == l))",
    b"[1].map(x, x)",
    b"prompt_tokens / 0 == 1",
]
SETTING_WORDS = [
    b"pools:\n",
    b"backends:\n",
    b"id: e0\n",
    b"url: ",
    b"http://127.0.0.1:1",
    b"workers: 0\n",
    b"data:\n",
    b"stores:\n",
    b"admin: {bind: x}\n",
]

POLICIES = Target(
    "policies",
    YAML + POLICY_WORDS,
    [path.read_bytes() for path in sorted(EXAMPLES.rglob("*.yaml")) if not (path.name.startswith("settings") or "@" in path.name)],
)
PROMPT_WORDS = [b"{{ ", b" }}", b"{% if refund %}", b"{% for x in bought %}", b"{% endfor %}", b"{% endif %}", b"{%", b"{#", b"customer"]
PROMPTS = Target("prompts", YAML + PROMPT_WORDS, [path.read_bytes() for path in sorted(EXAMPLES.rglob("prompts/*.yaml"))])
SETTINGS = Target("settings", YAML + SETTING_WORDS, [path.read_bytes() for path in sorted(EXAMPLES.rglob("settings-*.yaml"))])


def places(problems: Sequence[Problem], file: Path, data: bytes) -> str:
    """Every problem says where and what, on one line, and nothing of the environment."""
    assert problems
    # YAML's line ends: a NEL, LS or PS begins a line too
    lines = 1 + len(re.findall(rb"\r\n|\r|\n|\xc2\x85|\xe2\x80[\xa8\xa9]", data))
    for one in problems:
        assert one.file == str(file)
        assert 1 <= one.line <= lines + 1, one
        assert one.column >= 1
        assert one.message
        assert len(str(one)) < 2000
        assert str(one).isprintable(), repr(str(one))
        assert CANARY not in str(one)
    return "; ".join(sorted({re.sub(r"'.*?'|\".*?\"|\d+", "x", one.message)[:60] for one in problems})[:3])


def policies(folder: Path) -> Any:
    file = folder / "one.yaml"

    def law(data: bytes) -> str:
        file.write_bytes(data)
        try:
            found = load_policies(folder, POOLS, {"chat": ["support-bot"]})
        except ConfigError as error:
            return places(error.problems, file, data)
        assert found is not None
        return "ok"

    return law


def prompts(folder: Path) -> Any:
    file, reading = folder / "customer_support@2.yaml", PromptFolder(folder)

    def law(data: bytes) -> str:
        file.unlink(missing_ok=True)  # so that no two inputs look the same from outside
        file.write_bytes(data)
        registry, problems = reading.read()
        if problems:
            return places(problems, file, data)
        prompt = registry["customer_support"][2]
        values = {name: "x" for name, one in prompt.variables.items() if one.type == "string"}
        with contextlib.suppress(VariableRefused, TooLong):
            prompt.rendered(values)
            return "ok"
        return "ok, refused"

    return law


def settings(folder: Path) -> Any:
    file = folder / "tidegate.yaml"
    (folder / "policies").mkdir()

    def law(data: bytes) -> str:
        file.write_bytes(data)
        reading = read_settings(file, ENVIRON)
        if reading.settings is None:
            return places(reading.problems, file, data)
        assert reading.problems == ()
        assert reading.settings.pools
        return "ok"

    return law


@pytest.mark.parametrize("path", POLICIES.corpus, ids=lambda p: p.stem)
def test_policy_corpus(path: Path, tmp_path: Path) -> None:
    policies(tmp_path)(path.read_bytes())


@pytest.mark.parametrize("path", PROMPTS.corpus, ids=lambda p: p.stem)
def test_prompt_corpus(path: Path, tmp_path: Path) -> None:
    prompts(tmp_path)(path.read_bytes())


@pytest.mark.parametrize("path", SETTINGS.corpus, ids=lambda p: p.stem)
def test_settings_corpus(path: Path, tmp_path: Path) -> None:
    settings(tmp_path)(path.read_bytes())


def test_policies_are_a_set_or_errors_with_their_place(tmp_path: Path, record_property: Any) -> None:
    record_property("figure", POLICIES.run(policies(tmp_path), 800))


def test_prompts_can_be_rendered_or_are_errors_with_their_place(tmp_path: Path, record_property: Any) -> None:
    record_property("figure", PROMPTS.run(prompts(tmp_path), 300))


def test_settings_are_taken_whole_or_errors_with_their_place(tmp_path: Path, record_property: Any) -> None:
    record_property("figure", SETTINGS.run(settings(tmp_path), 150))
