"""Answers that have to be JSON of a certain shape. Pure.

A text is one JSON value, alone or in a fence of Markdown, and fits the rule's schema (`guardrails.rules.schemas`). An empty text, as beside
a call of a tool, has no finding.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from guardrails.ports import Finding, Scanned
from guardrails.rules.schemas import NotJson, Schema, parsed

VERSION: Final = "json_schema 1"
_OPENS: Final = re.compile(r"\s*```(?:json)?[ \t]*\r?\n", re.IGNORECASE)
_FENCE: Final = "```"


class JsonSchema:
    """Finds texts that are no JSON or do not fit a schema.

    Args:
        rule: the id of the rule.
        schema: the JSON Schema.
        fenced: whether the JSON may stand in a fence, which is taken off.

    Findings cover the whole text, and are of the kind `not_json` or `schema`.

    Raises:
        ValueError: as `guardrails.rules.schemas.Schema` does.
    """

    version = VERSION

    def __init__(self, rule: str, schema: Mapping[str, Any], *, fenced: bool = False) -> None:
        self._rule = rule
        self._fenced = fenced
        self._schema = Schema(schema)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> None:
        """None: the whole text is judged."""
        return None

    def scan(self, text: Scanned) -> Sequence[Finding]:
        original = text.original
        written = _without_fence(original) if self._fenced else original
        if not original.strip():
            return ()
        try:
            kind = "" if self._schema.fits(parsed(written), len(written)) else "schema"
        except NotJson:
            kind = "not_json"
        return [Finding(self._rule, kind, 0, len(original))] if kind else ()


def _without_fence(text: str) -> str:
    """What stands in a fence that is all of a text; another text as it is."""
    opened = _OPENS.match(text)
    inner = text.rstrip()
    if opened is None or not inner.endswith(_FENCE) or len(inner) - len(_FENCE) < opened.end():
        return text
    return inner[opened.end() : -len(_FENCE)]
