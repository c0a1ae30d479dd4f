"""What the classifier is trained on and judged by: the visible sets as texts with label, source and part, and made texts.

Parts: `tuning` texts of honest sets train and calibrate, `kept away` ones are only judged. Agent sessions are parted by the digest of the
session and not of the message, because messages of one session repeat each other. NotInject, XSTest and the honest prompts of CyberSecEval
never train nor calibrate. Attempts have no parts here: a whole source is left out at a time.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.guards import made_attacks, sets

SOURCES: Final = ("deepset", "giskard", "jailbreakbench", "cyberseceval", "in the wild")
"""Sources of attempts that stand alone. BIPIA's are harmless requests when alone, so they are hidden in e-mails (`in_documents`)."""
HONEST: Final = ("agent sessions", "BANKING77", "CLINC150", "BFCL tools", "prompts-bench")
"""Honest sets whose tuning parts train and calibrate."""
JUDGED: Final = ("NotInject", "XSTest", "CyberSecEval benign")
"""Honest sets that only judge."""
FOLDS: Final = 4
MADE_EACH: Final = 400
"""Made texts of each family: as many as a middling source has."""


class Example(NamedTuple):
    """A text for training or judging."""

    text: str
    attack: bool
    source: str
    tuning: bool
    fold: int
    """0 to `FOLDS` - 1: thresholds are set on each fold of the honest tuning texts by a model that was trained without it."""


def _fold(text: str) -> int:
    return sha256(b"fold" + text.encode("utf-8", "replace")).digest()[0] % FOLDS


def attempts(data: Path) -> list[Example]:
    """All rows of the sources, honest ones among them."""
    return [Example(row.text, row.attack, name, True, _fold(row.text)) for name in SOURCES for row in sets.attacks(data, name)]


def honest(data: Path, names: Sequence[str] = (*HONEST, *JUDGED)) -> list[Example]:
    """The honest sets; of BFCL and the benchmark prompts what users say, turn by turn."""
    made: list[Example] = []
    for name in names:
        for text, group in dict(_texts(data, name)).items():
            made.append(Example(text, False, name, name in HONEST and sets.tuned(group), _fold(group)))
    return made


def _texts(data: Path, name: str) -> Iterator[tuple[str, str]]:
    """The texts of an honest set, each with what decides its part."""
    if name == "agent sessions":
        yield from _sessions(data)
    elif name in ("BFCL tools", "prompts-bench"):
        for row in sets.rows(data, sets.HONEST[name]):
            for text in _said(row["turns"]):
                yield text, text
    else:
        for text in sets.honest(data, name):
            yield text, text


def _sessions(data: Path) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for session, text in sets.session_texts(data):
        if text and text not in seen:
            seen.add(text)
            yield text, session


def _said(turns: list[Any]) -> Iterator[str]:
    for turn in turns:
        if isinstance(turn, str):
            yield turn
        else:
            yield from (message["content"] for message in turn if message["role"] == "user")


def around(examples: Sequence[Example]) -> made_attacks.Honest:
    """Honest texts of the tuning parts that made attempts are made with."""
    tuning = [one for one in examples if one.tuning and not one.attack]
    requests = [one.text for one in tuning if one.source in ("BFCL tools", "prompts-bench") and len(one.text) < 400]
    requests += [one.text for one in tuning if one.source == "CLINC150"][:1000]
    sessions = [one.text for one in tuning if one.source == "agent sessions"]
    passages = [part for text in sessions for part in text.split("\n\n") if 80 < len(part) < 600]
    words = {word for text in sessions + requests for word in re.findall(r"[^\W\d_]{2,14}", text)}
    return made_attacks.Honest(requests, passages, sorted(words))


def made(examples: Sequence[Example], left_out: str | None, each: int = MADE_EACH) -> list[Example]:
    """Made texts, without the phrases that were written after rows of the source that is left out."""
    attacks = made_attacks.attacks(7, each, around(examples), left_out)
    texts = [Example(text, True, f"made {family}", True, _fold(text)) for family, text in attacks]
    return texts + [Example(text, False, f"made {family}", True, _fold(text)) for family, text in made_attacks.honest(5, each)]


def in_documents(data: Path) -> list[Example]:
    """BIPIA's attempts, each in three e-mails that its digest chooses: at the beginning, in the middle and at the end."""
    rows = sets.attacks(data, "bipia")
    mails = sorted(row.text for row in rows if not row.attack)
    cases = []
    for row in rows:
        if not row.attack:
            cases.append(Example(row.text, False, "bipia", False, 0))
            continue
        for place in range(3):
            mail = mails[int.from_bytes(sha256(f"{place}{row.text}".encode()).digest()[:4], "big") % len(mails)]
            lines = mail.split("\n")
            at = (0, len(lines) // 2, len(lines))[place]
            cases.append(Example("\n".join([*lines[:at], row.text, *lines[at:]]), True, "bipia", False, 0))
    return cases
