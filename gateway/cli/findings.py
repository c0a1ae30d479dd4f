"""What `tidegate check` found, for programs: JSON, and SARIF 2.1.0, which code hosts show at the lines of a change."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import PurePath
from typing import Any, Final

import msgspec

from policies.yaml.problems import Problem

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
RULES: Final = {"mistake": "What a start of the gateway would refuse.", "note": "What is no mistake and hardly meant."}


def findings(problems: Sequence[Problem], notes: Sequence[str]) -> dict[str, Any]:
    """`{"ok", "problems": [{"file", "line", "column", "path", "message", "hint"}], "notes": [text]}`."""
    return {"ok": not problems, "problems": msgspec.to_builtins(list(problems)), "notes": list(notes)}


def sarif(problems: Sequence[Problem], notes: Sequence[str], settings: str) -> dict[str, Any]:
    """The same as a SARIF log of one run.

    Args:
        settings: the settings file, where notes are shown: they concern no line.
    """
    results = [
        _result("mistake", "error", _sentence(problem), problem.file, {"startLine": problem.line, "startColumn": problem.column})
        for problem in problems
    ]
    results += [_result("note", "note", note, settings, {"startLine": 1}) for note in notes]
    driver = {
        "name": "tidegate check",
        "version": version("tidegate"),
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _sentence(problem: Problem) -> str:
    parts = filter(None, (problem.path, problem.message))
    return ": ".join(parts) + (f"; {problem.hint}" if problem.hint else "")


def _result(rule: str, level: str, text: str, file: str, region: dict[str, int]) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": PurePath(file).as_posix()}, "region": region}
    return {"ruleId": rule, "level": level, "message": {"text": text}, "locations": [{"physicalLocation": place}]}
