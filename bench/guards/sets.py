"""The visible sets, each row once, parted into a half that rules were tuned on and one that was kept away.

The half is decided by the SHA-256 of the text (even: tuning). Two sets (NotInject, CyberSecEval's benign prompts) were themselves drawn by
that digest, so that all their rows are even: their rows were not tuned on, but they were looked at, and count as the tuning half.
"""

import gzip
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

ATTACKS: Final = {
    "deepset": "guard-deepset-injections",
    "giskard": "guard-giskard-injections",
    "jailbreakbench": "guard-jailbreakbench",
    "cyberseceval": "guard-cyberseceval-injection",
    "in the wild": "guard-inthewild-jailbreaks",
    "bipia": "guard-bipia",
}
HONEST: Final = {
    "NotInject": "guard-notinject",
    "XSTest": "guard-xstest",
    "CyberSecEval benign": "guard-cyberseceval-benign",
    "agent sessions": "prompts-agent-sessions",
    "prompts-bench": "prompts-bench",
    "BFCL tools": "prompts-bfcl-tools",
    "BANKING77": "intents-banking77",
    "CLINC150": "intents-clinc150",
}
PII_TYPES: Final = {
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "national_id",
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "IP_ADDRESS": "ip",
}


class Labelled(NamedTuple):
    """A text and whether it is an attack."""

    text: str
    attack: bool


class Spans(NamedTuple):
    """A text and the spans in it."""

    text: str
    spans: list[tuple[str, int, int]]


def tuned(text: str) -> bool:
    """Whether a text belongs to the half that rules were tuned on."""
    return sha256(text.encode("utf-8", "replace")).digest()[-1] % 2 == 0


def _rows(data: Path, folder: str) -> Iterator[dict[str, Any]]:
    for path in sorted((data / folder).glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def attacks(data: Path, name: str) -> list[Labelled]:
    """The rows of a set with labels."""
    return [Labelled(text, bool(label)) for text, label in {row["text"]: row["label"] for row in _rows(data, ATTACKS[name])}.items()]


def honest(data: Path, name: str) -> list[str]:
    """The messages of a set without attacks, each once. Of agent sessions: what each call adds to the prompt before, and its answer."""
    texts: dict[str, None] = {}
    before: dict[str, str] = {}
    for row in _rows(data, HONEST[name]):
        if "input" in row:
            known = _shared(before.get(row["session"], ""), row["input"])
            before[row["session"]] = row["input"]
            texts |= {row["input"][known:]: None, row["output"] or "": None}
        elif "turns" in row:
            texts[json.dumps([row["turns"], row.get("tools")], ensure_ascii=False)] = None
        else:
            texts[row["text"]] = None
    return [text for text in texts if text]


def _shared(first: str, second: str) -> int:
    """The characters with which both begin."""
    if second.startswith(first):
        return len(first)
    return next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def pii(data: Path) -> list[Spans]:
    """Sentences with the spans of structured personal data in them."""
    return [
        Spans(row["text"], [(PII_TYPES[kind], begin, end) for kind, begin, end in row["spans"] if kind in PII_TYPES])
        for row in _rows(data, "pii-presidio-research")
    ]
