"""A policy's parameters applied to a request: refused ones, upper bounds and defaults."""

from typing import Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.http.openai.checks import refuse
from gateway.http.openai.sizes import behind_prompt
from policies.parameters import Parameters

CHATS_ALONE: Final = frozenset({"reasoning_effort"})


def with_parameters(ask: Ask, parameters: Parameters) -> Ask:
    """The Ask with the policy's defaults for the parameters that it does not set. A parameter that is null is not set.

    Raises:
        Fault: NOT_PERMITTED for a parameter that requests may not set, INVALID_VALUE for one above its bound.
    """
    not_allowed = frozenset() if parameters.allowed is None else ask.names - parameters.allowed
    looked_at = ask.names & parameters.looked_at
    set_by_caller = {name: value for name, value in behind_prompt(ask).items() if value is not None} if not_allowed or looked_at else {}
    for name in sorted((not_allowed | (looked_at & parameters.refused)) & set_by_caller.keys()):
        raise Fault(Kind.NOT_PERMITTED, f"Requests may not set '{name}' here.", param=name)
    for name, most in parameters.at_most:
        value = set_by_caller.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            refuse(f"Invalid value for '{name}': at most {most:g} is allowed here, not {value:g}.", name)
    if not ask.endpoint.generates:
        return ask
    chat = ask.endpoint.has_messages
    missing = {name: value for name, value in parameters.defaults if name not in set_by_caller and (chat or name not in CHATS_ALONE)}
    if not missing:
        return ask
    fields = ask.fields
    if not ask.names.isdisjoint(missing):  # a null goes, so that no engine has to choose between it and the default
        set_fields = msgspec.json.encode({name: value for name, value in behind_prompt(ask).items() if name not in missing})
        fields = ask.fields[: ask.prompt_at[1]] + (b"," if len(set_fields) > len(b"{}") else b"") + set_fields[1:]
    defaults = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in missing.items())
    return msgspec.structs.replace(ask, fields=b"%b,%b}" % (fields[:-1], defaults), names=ask.names | missing.keys())
