"""The request fields that an engine takes; other fields are dropped or refused. Pure: rules and a checked Ask in, JSON out.

Engines treat unknown fields differently: TensorRT-LLM, Triton and Dynamo refuse the request, with errors of their own; vLLM, SGLang,
llama.cpp and TGI ignore the field. The second is worse: a caller that sent `guided_json` gets free text and a 200. So a field that the
engine would ignore is refused here, by its name, except where dropping it changes nothing: it holds its own default, or it is for the
vendor's bookkeeping.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind


def _none(_names: Collection[str]) -> bool:
    return False


class Fields(msgspec.Struct, frozen=True):
    """The rules for one engine's top-level fields, without the gateway's own."""

    takes: Mapping[Endpoint, frozenset[str]] | None = None
    """All fields that the engine follows, by endpoint (it does not have an endpoint that is missing here); None when the list is open."""
    refuses: Mapping[str, str] = {}
    """Fields that the engine would accept and ignore, each with the alternative for the caller; it ends the sentence "… is not supported by
    the engine serving this model"."""
    not_at_default: frozenset[str] = frozenset()
    """Fields that the engine follows but refuses or misreads when they hold their own default."""
    lists: frozenset[str] = frozenset()
    """Fields that must be a list for the engine, where OpenAI's callers may send one string."""
    leaves: Callable[[Collection[str]], bool] = _none
    """Whether an Ask with these names surely needs no change, so that `fit` need not look; filled in."""

    def __post_init__(self) -> None:
        if self.takes is None:
            watched = frozenset({*self.refuses, *self.not_at_default, *self.lists})
            msgspec.structs.force_setattr(self, "leaves", watched.isdisjoint)


OPEN: Final = Fields()
"""The rules for an unknown engine: every field passes."""

STRUCTURE: Final = frozenset(
    {
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "guided_choice",
        "guided_whitespace_pattern",
        "structured_outputs",
        "structural_tag",
        "json_schema",
        "regex",
        "ebnf",
        "grammar",
    }
)
"""Engines' own fields for structured output, besides `response_format`, which all know."""

BOOKKEEPING: Final = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"}
)
"""Fields for the vendor's bookkeeping, without effect on the answer of a self-hosted engine."""

DEFAULTS: Final[Mapping[str, tuple[object, ...]]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "encoding_format": ("float",),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop": ([],),
    "stream": (False,),
    "suffix": ("",),
    "tools": ([],),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "top_p": (1,),
}
"""Values that mean the same as the field's absence. Client libraries fill in some of them by themselves. `false` and 0 are equal
here, which is right for `logprobs`: a flag in chats, a count in completions."""


_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Decodes an object and leaves its members raw, so that a prompt stays the bytes that were checked."""


def instead_of(follows: frozenset[str], instead: str) -> Mapping[str, str]:
    """The value of `refuses` for an engine that follows only these fields of `STRUCTURE`."""
    return dict.fromkeys(STRUCTURE - follows, instead)


def fit(rules: Fields, ask: Ask) -> bytes:
    """The Ask's fields as the engine takes them; the same bytes object where nothing needs a change, which is the usual case.

    Raises:
        Fault: UNSUPPORTED_PARAMETER with the name of a field that the engine would refuse or ignore, or with `model` when it does not
            have the endpoint.
    """
    doubtful = ask.names & rules.refuses.keys()
    if rules.takes is not None:
        takes = rules.takes.get(ask.endpoint)
        if takes is None:
            raise Fault(Kind.UNSUPPORTED_PARAMETER, "The engine serving this model does not have this endpoint.", param="model")
        doubtful |= ask.names - takes
    changed = ask.names & (rules.not_at_default | rules.lists)
    if not doubtful and not changed and not _both_caps(rules, ask):
        return ask.fields
    document = _decode(ask.fields)
    for name in sorted(doubtful | changed):
        value = msgspec.json.decode(document[name])
        if _is_absent(name, value) or (name in doubtful and name in BOOKKEEPING):
            del document[name]
        elif name in doubtful:
            raise _not_followed(name, rules)
        elif name in rules.lists and isinstance(value, str):
            document[name] = msgspec.Raw(b"[%b]" % document[name])
    if _both_caps(rules, ask):
        del document["max_completion_tokens"]
    return msgspec.json.encode(document)


def _both_caps(rules: Fields, ask: Ask) -> bool:
    """Whether the Ask holds both names of the output cap: engines that check their fields refuse that, even if the two are equal."""
    return rules.takes is not None and {"max_tokens", "max_completion_tokens"} <= ask.names


def _is_absent(name: str, value: object) -> bool:
    return value is None or value in DEFAULTS.get(name, ())


def _not_followed(name: str, rules: Fields) -> Fault:
    instead = rules.refuses.get(name)
    why = f": {instead}" if instead else ""
    return Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{name}' is not supported by the engine serving this model{why}.", param=name)
