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

SESSIONS: Final = "prompts-agent-sessions"
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
    "agent sessions": SESSIONS,
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


def digest(text: str) -> bytes:
    """The SHA-256 of a text."""
    return sha256(text.encode("utf-8", "replace")).digest()


def tuned(text: str) -> bool:
    """Whether a text belongs to the half that rules were tuned on."""
    return digest(text)[-1] % 2 == 0


def rows(data: Path, folder: str) -> Iterator[dict[str, Any]]:
    """The rows of a set as they are stored."""
    for path in sorted((data / folder).glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def attacks(data: Path, name: str) -> list[Labelled]:
    """The rows of a set with labels."""
    return [Labelled(text, bool(label)) for text, label in {row["text"]: row["label"] for row in rows(data, ATTACKS[name])}.items()]


def honest(data: Path, name: str) -> list[str]:
    """The messages of a set without attacks, each once. Of agent sessions: what each call adds to the prompt before, and its answer."""
    texts: dict[str, None] = {}
    if HONEST[name] == SESSIONS:
        texts = dict.fromkeys(text for _, text in session_texts(data))
        return [text for text in texts if text]
    for row in rows(data, HONEST[name]):
        if "turns" in row:
            texts[json.dumps([row["turns"], row.get("tools")], ensure_ascii=False)] = None
        else:
            texts[row["text"]] = None
    return [text for text in texts if text]


def session_texts(data: Path) -> Iterator[tuple[str, str]]:
    """The session, and what a call adds to the prompt before, or its answer; texts may be empty and may recur."""
    before: dict[str, str] = {}
    for row in rows(data, SESSIONS):
        known = _shared(before.get(row["session"], ""), row["input"])
        before[row["session"]] = row["input"]
        yield row["session"], row["input"][known:]
        yield row["session"], row["output"] or ""


def _shared(first: str, second: str) -> int:
    """The characters with which both begin."""
    if second.startswith(first):
        return len(first)
    return next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def pii(data: Path) -> list[Spans]:
    """Sentences with the spans of structured personal data in them."""
    return [
        Spans(row["text"], [(PII_TYPES[kind], begin, end) for kind, begin, end in row["spans"] if kind in PII_TYPES])
        for row in rows(data, "pii-presidio-research")
    ]
