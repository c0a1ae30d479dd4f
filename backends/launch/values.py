"""The ranges of flags and parameters: values that no engine can use are refused before it is started. Pure.

The engines' own parsers accept such values: they check that a count is a whole number, and fail minutes later because it is negative. Only
flags with an obvious range are listed here; the engine checks the others.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from pydantic import JsonValue

BACKEND_ID: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"
"""Ids of backends that the gateway accepts."""

_TCP: Final = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.*]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_IPC: Final = re.compile(r"ipc://[^\s]+")


class Range(msgspec.Struct, frozen=True):
    """The numbers that a flag may have."""

    least: float
    most: float = float("inf")
    above: bool = False
    """Whether `least` itself is excluded."""
    also: float | None = None
    """One number outside the range that has a meaning of its own."""
    meaning: str = ""
    """The meaning of `also`, for messages."""

    def __contains__(self, number: float) -> bool:
        low = number > self.least if self.above else number >= self.least
        return number == self.also or (low and number <= self.most)

    def __str__(self) -> str:
        least = f"{'above' if self.above else 'at least'} {self.least:g}"
        most = "" if self.most == float("inf") else f" and at most {self.most:g}"
        return least + most + ("" if self.also is None else f", or {self.also:g} for {self.meaning}")


_COUNT: Final = Range(1)
_LIMIT: Final = Range(0)
_SHARE: Final = Range(0, 1, above=True)
_COUNTED: Final = (
    *("max-num-seqs", "max-num-batched-tokens", "block-size", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
    *("data-parallel-size-local", "max-loras", "max-cpu-loras", "tp-size", "pp-size", "dp-size", "ep-size", "page-size"),
    *("context-length", "max-running-requests", "max-total-tokens", "max-loras-per-batch", "max-loaded-loras", "max-lora-rank"),
)

RANGES: Final[Mapping[str, Range]] = {
    **dict.fromkeys(_COUNTED, _COUNT),
    **dict.fromkeys(("max-num-queued-reqs", "max-num-queued-tokens", "max-queued-requests", "shutdown-timeout"), _LIMIT),
    **dict.fromkeys(("gpu-memory-utilization", "mem-fraction-static"), _SHARE),
    "max-model-len": Range(1, also=-1, meaning="what fits"),
    "port": Range(1, 65_535),
}
"""Ranges by flag, without dashes, of vLLM and SGLang together."""


def out_of_range(name: str, value: JsonValue) -> str | None:
    """Why a flag's number is out of range; None when it is not, or when the range is not known here."""
    allowed = RANGES.get(name)
    if allowed is None or isinstance(value, bool | list | dict) or value is None:
        return None
    return None if float(value) in allowed else f"is {allowed}, not {value}"


def wrong_parameters(parameters: Mapping[str, str | int | float]) -> list[str]:
    """The mistakes in the parameters of a launch configuration, derived ones included, one sentence each."""
    problems = []
    for name in ("model", "served_name"):
        if name in parameters and not str(parameters[name]).strip():
            problems.append(f"--set {name}: is empty; it is text of at least one character")
    identity = str(parameters.get("id", "x"))
    if re.fullmatch(BACKEND_ID, identity) is None:
        allowed = "1 to 64 letters, digits, '.', '_' and '-', with a letter or digit at both ends"
        problems.append(f"--set id: the gateway does not take {identity!r}; it is {allowed}")
    digest = str(parameters.get("digest", ""))
    if digest and re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is None:
        problems.append(f"--set digest: does not take {digest[:80]!r}; write sha256: and 64 digits, as `tidegate model digest` prints it")
    for name in ("events_endpoint", "replay_endpoint"):
        if name in parameters and not _is_endpoint(str(parameters[name])):
            problems.append(f"--set {name}: does not take {str(parameters[name])!r}; write tcp://HOST:PORT, tcp://*:PORT or ipc:///PATH")
    return problems


def _is_endpoint(text: str) -> bool:
    tcp = _TCP.fullmatch(text)
    return _IPC.fullmatch(text) is not None if tcp is None else 1 <= int(tcp[2]) <= 65_535
