"""Calls of tools: which may be called, and with what arguments. Pure.

A name is judged as soon as it is known. Arguments are judged where their tool has a schema (`guardrails.rules.schemas`): they are JSON, and
fit. No arguments at all count as `{}`, as engines write both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import re2

from guardrails.ports import Finding
from guardrails.rules.schemas import NotJson, Schema, parsed

VERSION: Final = "tools 1"


class Tools:
    """Finds calls that are not allowed.

    Args:
        rule: the id of the rule.
        allow: names of tools that may be called, `*` for any characters; None for all, none of them for no tool.
        arguments: JSON Schemas by the exact name of their tool.

    Findings are of the kind `tool_not_allowed`, over the name, or `arguments_not_json` and `arguments_schema`, over the arguments.

    Raises:
        ValueError: a schema is none, as `guardrails.rules.schemas.Schema` says, or belongs to a tool that `allow` leaves out.
    """

    version = VERSION

    def __init__(self, rule: str, allow: Sequence[str] | None, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        self._rule = rule
        self._allow = None if allow is None else _names(allow)
        self._schemas: dict[str, Schema] = {}
        for name, schema in arguments.items():
            if not self._allowed(name):
                raise ValueError(f"arguments has a schema for {name}, which allow leaves out; add {name} to allow, or remove the schema")
            try:
                self._schemas[name] = Schema(schema)
            except ValueError as error:
                raise ValueError(f"arguments of {name}: {error}") from None

    @property
    def id(self) -> str:
        return self._rule

    def reads_arguments(self, name: str) -> bool:
        return name in self._schemas

    def scan_call(self, name: str, arguments: str | None) -> Sequence[Finding]:
        if not self._allowed(name):
            return [Finding(self._rule, "tool_not_allowed", 0, len(name))]
        schema = self._schemas.get(name)
        if schema is None or arguments is None:
            return ()
        try:
            kind = "" if schema.fits(parsed(arguments if arguments.strip() else "{}"), len(arguments)) else "arguments_schema"
        except NotJson:
            kind = "arguments_not_json"
        return [Finding(self._rule, kind, 0, len(arguments))] if kind else ()

    def _allowed(self, name: str) -> bool:
        return self._allow is None or self._allow.fullmatch(name.encode("utf-8", "replace")) is not None


def _names(allow: Sequence[str]) -> Any:
    """An expression of all names; RE2's, so that a long name with many stars takes no longer than others."""
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    written = ["(?:" + ".*".join([re2.escape(part) for part in name.split("*")]) + ")" for name in allow]
    # an expression that matches nothing where no tool is allowed
    return re2.compile(("|".join(written) or r"[^\x00-\x{10FFFF}]").encode(), options=options)
