"""The request fields that an engine takes; other fields are dropped or refused. Pure: rules and a checked Ask in, JSON out.

Engines treat unknown fields differently: TensorRT-LLM, Triton and Dynamo refuse the request, with errors of their own; vLLM, SGLang,
llama.cpp and TGI ignore the field. The second is worse: a caller that sent `guided_json` gets free text and a 200. So a field that the
engine would ignore is refused here, by its name, except where dropping it changes nothing: it holds its own default, or it is for the
vendor's bookkeeping. Two subjects have as many spellings as engines, and are translated first: `structure` and `thinking`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from backends.dialects.structure import FORMAT, STRUCTURE, StructureFields, translate_structure
from backends.dialects.thinking import ThinkingFields, translate_thinking
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
    structure: StructureFields | None = None
    """The engine's fields for structured output; None where the caller's go to it as they are, or `takes` alone decides."""
    thinking: ThinkingFields | None = None
    """How the engine takes the switch for thinking; None where the caller's fields go to it as they are, or `takes` alone decides."""
    leaves: Callable[[Collection[str]], bool] = _none
    """Whether an Ask with these names surely needs no change, so that `fit` need not look; filled in."""

    def __post_init__(self) -> None:
        if self.takes is None:
            watched = {*self.refuses, *self.not_at_default, *self.lists}
            if self.structure is not None:
                watched |= (STRUCTURE | {FORMAT}) - frozenset.intersection(*self.structure.native.values())
            if self.thinking is not None:
                watched |= self.thinking.watched()
            msgspec.structs.force_setattr(self, "leaves", frozenset(watched).isdisjoint)


OPEN: Final = Fields()
"""The rules for an unknown engine: every field passes."""

VLLM_ALONE: Final[Mapping[str, str]] = {"media_io_kwargs": "", "mm_processor_kwargs": "", "return_prompt_text": ""}
"""Fields of vLLM's that SGLang and llama.cpp ignore."""

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
    "media_io_kwargs": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "return_token_strs": (False,),
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


def fit(rules: Fields, ask: Ask) -> bytes:
    """The Ask's fields as the engine takes them; the same bytes object where nothing needs a change, which is the usual case.

    Raises:
        Fault: UNSUPPORTED_PARAMETER with the name of a field that the engine would refuse or ignore, or with `model` when it does not
            have the endpoint.
    """
    names, document = ask.names, _translated(rules, ask)
    if document is not None:
        names = frozenset(document)
    doubtful = names & rules.refuses.keys()
    if rules.takes is not None:
        takes = rules.takes.get(ask.endpoint)
        if takes is None:
            raise Fault(Kind.UNSUPPORTED_PARAMETER, "The engine serving this model does not have this endpoint.", param="model")
        doubtful |= names - takes
    changed = names & (rules.not_at_default | rules.lists)
    both_caps = _both_caps(rules, names)
    if not doubtful and not changed and not both_caps:
        return ask.fields if document is None else msgspec.json.encode(document)
    if document is None:
        document = _decode(ask.fields)
    for name in sorted(doubtful | changed):
        value = msgspec.json.decode(document[name])
        if _is_absent(name, value) or (name in doubtful and name in BOOKKEEPING):
            del document[name]
        elif name in doubtful:
            raise _not_followed(name, rules)
        elif name in rules.lists and isinstance(value, str):
            document[name] = msgspec.Raw(b"[%b]" % document[name])
    if both_caps:
        del document["max_completion_tokens"]
    return msgspec.json.encode(document)


def _translated(rules: Fields, ask: Ask) -> dict[str, msgspec.Raw] | None:
    """The fields with constraints and switches in the engine's own spelling; None where the caller's are the engine's."""
    structure, thinking = rules.structure, rules.thinking
    foreign = structure is not None and ask.endpoint.generates and structure.foreign(ask.names, ask.endpoint)
    switched = thinking is not None and ask.endpoint.has_messages and not ask.names.isdisjoint(thinking.watched())
    if not foreign and not switched:
        return None
    document = _decode(ask.fields)
    if foreign:
        assert structure is not None
        translate_structure(document, structure)
    if switched:
        assert thinking is not None
        translate_thinking(document, thinking)
    return document


def _both_caps(rules: Fields, names: frozenset[str]) -> bool:
    """Whether the names hold both names of the output cap: engines that check their fields refuse that, even if the two are equal."""
    return rules.takes is not None and {"max_tokens", "max_completion_tokens"} <= names


def _is_absent(name: str, value: object) -> bool:
    return value is None or value in DEFAULTS.get(name, ())


def _not_followed(name: str, rules: Fields) -> Fault:
    instead = rules.refuses.get(name)
    why = f": {instead}" if instead else ""
    return Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{name}' is not supported by the engine serving this model{why}.", param=name)
