"""The switch for a model's thinking: its spellings in requests, and how each kind of engine takes it. Pure.

A hybrid model's chat template reads `enable_thinking` (Qwen, GLM, Nemotron) or `thinking` (DeepSeek, Granite, Kimi). Engines hand a
template the members of `chat_template_kwargs`; hosted APIs and their clients send the same names at the top level, which vLLM, SGLang
and llama.cpp ignore. `reasoning_effort: "none"` switches thinking off as well: vLLM and SGLang derive the template's variable from it,
llama.cpp does so since 2026, and any other effort switches thinking on. Read in vLLM 0.32 and SGLang 0.5.23, in TensorRT-LLM and Dynamo
at the commits that their dialects name.

Some templates know efforts and no switch: gpt-oss has `low`, `medium` and `high` and always thinks (vLLM refuses `none` and `minimal` for
it, SGLang refuses a `none` among the variables), Mistral's newer models have `none` and `high`. Engines drop the switch there without a
word. This was read in SGLang 0.5.23, in sources and error messages of vLLM newer than 0.32, and in the templates of Mistral's own library.
`Efforts` says which effort stands for the switch; an engine does not tell which kind of template it has, so a pool's settings do.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.faults import Fault, Kind

EFFORT: Final = "reasoning_effort"
KWARGS: Final = "chat_template_kwargs"
SWITCHES: Final = ("enable_thinking", "thinking")
"""The names of the switch, at the top level of a request and among the variables of templates."""


class Efforts(msgspec.Struct, frozen=True):
    """The values of `reasoning_effort` that stand for the switch, for a model whose chat template knows no switch."""

    enabled: str
    disabled: str
    """The least effort that the model has."""

    def asked(self, document: Mapping[str, Any]) -> str | None:
        """The effort that a checked chat asks for, in whatever spelling; None where it asks nothing, or sets the template's variable
        `reasoning_effort` itself.

        Raises:
            Fault: INVALID_VALUE where two of its fields contradict each other.
        """
        switch, effort, variables = switch_of(document), document.get(EFFORT), document.get(KWARGS) or {}
        if variables.get(EFFORT) is not None:
            return None
        if effort is not None:
            switch = effort != "none"
        switch = next((variables[name] is not False for name in SWITCHES if variables.get(name) is not None), switch)
        if switch is None:
            return None
        if not switch:
            return self.disabled
        return self.enabled if effort in (None, "none") else str(effort)


class ThinkingFields(msgspec.Struct, frozen=True):
    """How one kind of engine takes the switch."""

    variables: tuple[str, ...] = SWITCHES
    """The template's variables that are set, whichever name the caller used; empty where the caller's own name is set. Jinja ignores a
    variable that the template does not use; TensorRT-LLM refuses it."""
    takes_object: bool = False
    """Whether the engine has a field `thinking` of its own: an object with the type `enabled` or `disabled`."""
    from_effort: bool = False
    """Whether `reasoning_effort` is written as a switch too, for releases of the engine that do not derive it."""
    for_none: str = ""
    """The variable that is set in place of `reasoning_effort: "none"`, where the engine ignores or refuses that word; empty to send it."""
    efforts: Efforts | None = None
    """The efforts that stand for the switch, where the model's template has no variable for it; None where it has one."""

    def watched(self) -> frozenset[str]:
        """The fields of a request that may have to change."""
        if self.efforts is not None:
            return frozenset({*SWITCHES, EFFORT, KWARGS})
        return frozenset({*SWITCHES, EFFORT} if self.from_effort or self.for_none else SWITCHES)


def switch_of(document: Mapping[str, Any]) -> bool | None:
    """Whether a checked chat asks at the top level for thinking; None where it does not say.

    Raises:
        Fault: INVALID_VALUE where two of its fields contradict each other.
    """
    asked = None
    for name in SWITCHES:
        value = document.get(name)
        if value is None:
            continue
        on = value is True or (isinstance(value, dict) and value.get("type") != "disabled")
        if asked is not None and asked != on:
            raise _contradiction("enable_thinking", name)
        asked = on
    effort = document.get(EFFORT)
    if asked is not None and effort is not None and asked != (effort != "none"):
        raise _contradiction(EFFORT, next(name for name in SWITCHES if document.get(name) is not None))
    return asked


def translate_thinking(document: dict[str, msgspec.Raw], rules: ThinkingFields) -> None:
    """Write the switch of a chat where the engine reads it. A member of `chat_template_kwargs` that the caller set stays, except for a
    switch that goes out as an effort.

    Raises:
        Fault: INVALID_VALUE where fields contradict each other; UNSUPPORTED_PARAMETER for a member of `thinking` that the engine ignores.
    """
    fields: dict[str, Any] = {name: msgspec.json.decode(document[name]) for name in (*SWITCHES, EFFORT, KWARGS) if name in document}
    switch = switch_of(fields)
    thinking = fields.get("thinking")
    if rules.efforts is None and rules.takes_object and isinstance(thinking, dict) and fields.get("enable_thinking") is None:
        document.pop("enable_thinking", None)
        return
    for name in SWITCHES:
        document.pop(name, None)
    if isinstance(thinking, dict):
        for member in thinking:
            if member != "type":
                message = f"The parameter 'thinking.{member}' is not supported by the engine serving this model: send 'reasoning_effort'."
                raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=f"thinking.{member}")
    if rules.efforts is not None:
        _write_effort(document, fields, rules.efforts)
        return
    variables, effort = fields.get(KWARGS) or {}, fields.get(EFFORT)
    names = rules.variables or tuple(name for name in SWITCHES if fields.get(name) is not None)
    if rules.for_none and effort == "none":
        del document[EFFORT]
        if switch is None and variables.keys().isdisjoint(SWITCHES):
            switch, names = False, (rules.for_none,)
    elif switch is None and rules.from_effort and effort is not None:
        switch = effort != "none"
    if switch is not None:
        document[KWARGS] = msgspec.Raw(msgspec.json.encode(dict.fromkeys(names, switch) | variables))


def _write_effort(document: dict[str, msgspec.Raw], fields: Mapping[str, Any], efforts: Efforts) -> None:
    """Write the effort that the fields ask for, and take the switch out of the template's variables, which vLLM refuses for Mistral's."""
    effort = efforts.asked(fields)
    if effort is not None:
        document[EFFORT] = msgspec.Raw(msgspec.json.encode(effort))
    variables = fields.get(KWARGS) or {}
    rest = {name: value for name, value in variables.items() if name not in SWITCHES}
    if rest != variables:
        document[KWARGS] = msgspec.Raw(msgspec.json.encode(rest))
        if not rest:
            del document[KWARGS]


def template_variables(document: Mapping[str, Any], efforts: Efforts | None = None) -> dict[str, Any]:
    """The variables that engines give to the chat template for a checked chat, beside messages, tools and documents.

    Args:
        efforts: those of the pool's `thinking_as_effort`.

    Raises:
        Fault: INVALID_VALUE where two of its fields contradict each other.
    """
    if efforts is not None:
        asked = efforts.asked(document)
        rest = {name: value for name, value in (document.get(KWARGS) or {}).items() if name not in SWITCHES}
        return rest if asked is None else {EFFORT: asked, **rest}
    effort = document.get(EFFORT)
    variables = {} if effort is None else {EFFORT: effort, "enable_thinking": effort != "none"}
    switch = switch_of(document)
    if switch is not None:
        variables |= dict.fromkeys(SWITCHES, switch)
    return variables | (document.get(KWARGS) or {})


def _contradiction(one: str, other: str) -> Fault:
    return Fault(Kind.INVALID_VALUE, f"'{one}' and '{other}' contradict each other. Send one of them.", param=other)
