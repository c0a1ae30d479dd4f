"""A policy's parameters applied to a request: refused ones, upper bounds and defaults."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from backends.dialects.thinking import EFFORT
from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.http.openai.checks import refuse, shown
from gateway.http.openai.sizes import behind_prompt
from policies.parameters import CLOSED, SPELLINGS, Parameters

CHATS_ALONE: Final = frozenset({EFFORT})

_THINKING: Final = next(group for group in SPELLINGS if EFFORT in group)


def with_parameters(ask: Ask, parameters: Parameters) -> Ask:
    """The Ask with the policy's defaults for the parameters that it does not set. A parameter that is null is not set.

    Raises:
        Fault: NOT_PERMITTED for a parameter that requests may not set, INVALID_VALUE for one above its bound.
    """
    not_allowed = frozenset() if parameters.allowed is None else ask.names - parameters.allowed
    looked_at = ask.names & parameters.looked_at
    set_by_caller = {name: value for name, value in behind_prompt(ask).items() if value is not None} if not_allowed or looked_at else {}
    if set_by_caller:
        _check_set(set_by_caller, not_allowed | (looked_at & parameters.refused), parameters)
    if not ask.endpoint.generates:
        return ask
    chat = ask.endpoint.has_messages
    missing = {name: value for name, value in parameters.defaults if name not in set_by_caller and (chat or name not in CHATS_ALONE)}
    if EFFORT in missing and any(_value_at(set_by_caller, path) is not None for path in _THINKING):
        del missing[EFFORT]
    if not missing:
        return ask
    fields = ask.fields
    if not ask.names.isdisjoint(missing):  # a null goes, so that no engine has to choose between it and the default
        set_fields = msgspec.json.encode({name: value for name, value in behind_prompt(ask).items() if name not in missing})
        fields = ask.fields[: ask.prompt_at[1]] + (b"," if len(set_fields) > len(b"{}") else b"") + set_fields[1:]
    defaults = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in missing.items())
    return msgspec.structs.replace(ask, fields=b"%b,%b}" % (fields[:-1], defaults), names=ask.names | missing.keys())


def check_closed(ask: Ask, parameters: Parameters | None) -> None:
    """Refuse parameters that requests may set only where the policy opens them.

    Args:
        parameters: None where the policy has none, and opens nothing.

    Raises:
        Fault: UNSUPPORTED_PARAMETER with the path of the parameter.
    """
    opened = frozenset[str]() if parameters is None else parameters.opened
    for name, value in behind_prompt(ask).items():
        if name in CLOSED and value and (param := _outside(value, name, opened)):
            message = f"The parameter '{param}' is not supported: media processing is set by the operator of the engine."
            raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)


def _check_set(set_by_caller: Mapping[str, object], forbidden: Collection[str], parameters: Parameters) -> None:
    """Check the parameters that a request sets against the policy's.

    Args:
        forbidden: the parameters that may not be set at all.
    """
    for name in sorted(forbidden & set_by_caller.keys()):
        raise _may_not_set(name)
    for path in parameters.refused_members:
        if _value_at(set_by_caller, path) is not None:
            raise _may_not_set(path)
    for head in sorted({path.partition(".")[0] for path in parameters.allowed_members} & set_by_caller.keys()):
        if param := _outside(set_by_caller[head], head, parameters.allowed_members):
            raise _may_not_set(param)
    for name, most in parameters.at_most:
        value = _value_at(set_by_caller, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value > most:
            refuse(f"Invalid value for '{name}': at most {most:g} is allowed here, not {value:g}.", name)
        if "." in name and value is not None and not (is_number and value >= 0):
            refuse(f"Invalid value for '{name}': expected a number from 0 to {most:g}.", name)


def _value_at(fields: Mapping[str, object], path: str) -> Any:
    """The value at a path into objects; None where there is none."""
    value: object = fields
    for member in path.split("."):
        value = value.get(member) if isinstance(value, dict) else None
    return value


def _outside(value: object, path: str, allowed: Collection[str]) -> str:
    """The path of a member that is not among the allowed ones, neither by its own path nor by that of an object around it; empty where
    every member is."""
    if path in allowed or value is None:
        return ""
    if not isinstance(value, dict) or not any(name.startswith(f"{path}.") for name in allowed):
        return path
    for member, inner in value.items():
        name = member if member.isidentifier() and member.isascii() else shown(member, 16)
        if outside := _outside(inner, f"{path}.{name}", allowed):
            return outside
    return ""


def _may_not_set(param: str) -> Fault:
    return Fault(Kind.NOT_PERMITTED, f"Requests may not set '{param}' here.", param=param)
