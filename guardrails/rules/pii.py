"""Personal data whose structure can be checked: cards, IBANs, phone numbers, national ids, e-mail and IP addresses. Pure.

| kind | check | without a word in front |
|---|---|---|
| `card` | Luhn; without a word in front the issuers' ranges and lengths too | 15 and 16 digits |
| `iban` | mod 97, length and structure of the country (`python-stdnum`) | yes |
| `phone` | `phonenumbers.is_valid_number` | with `+`, or grouped and valid in a region of the policy |
| `national_id` | `guardrails.rules.national_ids` | ids with letters or punctuation of their own |
| `email` | form; file names and user names of URLs are none | yes |
| `ip` | `ipaddress`; loopback, unspecified, private and link-local addresses and version numbers are none | yes |

What nobody has is none: a card whose digits count up and down, and an address in a domain that is reserved for examples under a name that
stands for any (`your_email@example.com`). Published test cards, other addresses of such domains and the IP addresses of documentation are
findings, because operators try their rules with them.
"""

import ipaddress
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import phonenumbers
import re2
from stdnum import iban

from guardrails.ports import Finding, Scanned
from guardrails.rules.gate import Gate
from guardrails.rules.national_ids import CONTEXT_CHARS, ReadyId, ready_ids
from guardrails.text import Encoded, last_break, plain

VERSION: Final = "pii 2"
KINDS: Final = ("card", "iban", "phone", "national_id", "email", "ip")
DEFAULT_REGIONS: Final = ("US", "CA", "GB", "IE", "DE", "AT", "CH", "FR", "BE", "NL", "ES", "IT", "AU", "IN", "BR")
"""Countries of a rule that names none."""

_LONGEST: Final = {"card": 24, "iban": 44, "phone": 32, "national_id": 24, "email": 165, "ip": 45}
"""Characters of one finding, at most."""
_AROUND: Final = CONTEXT_CHARS + 2
BEFORE_CHARS: Final = 128
"""How far in front of a finding stands what decides about it: a word that says what a number is, the beginning of a URL."""

_GATES: Final = {
    "card": r"\b[1-6][0-9]{3}[ -]?[0-9]{4,6}[ -]?[0-9]{4,6}",
    "iban": r"\b[A-Za-z]{2}[0-9]{2} ?[A-Za-z0-9]{4} ?[A-Za-z0-9]{4}",
    "phone": r"[+(]?[0-9](?:[ ()./-]{0,2}[0-9]){6}",
    # bounded as the local part is: without a bound, each search would run to the end of a row such as `4111-4111-…`
    "email": r"[\w.%+'-]{1,64}@[\w]",
    # eight groups, or two colons in a row: a time of day is none
    "ip": r"\b[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|(?:[0-9A-Fa-f]{1,4}:){1,7}:|::[0-9A-Fa-f]|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]",
}

_CARD: Final = re.compile(
    r"(?<![\w.-])(?:\d{12,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{1,3})?|\d{4}([ -])\d{6}\2\d{4,5})(?![\w-]|\.\d)"
)
_CARD_WORDS: Final = re.compile(r"card|visa|master|amex|maestro|diners|discover|\bcc\b|credit|debit|payment|\bpan\b", re.IGNORECASE)
_IBAN: Final = re.compile(r"(?<![\w-])[A-Za-z]{2}\d{2}(?:[A-Za-z0-9]{11,30}|(?: [A-Za-z0-9]{4}){2,7}(?: [A-Za-z0-9]{1,3})?)(?!\w)")
_RUN: Final = re.compile(r"(?<![\w+.=#/-])[+(]?\(?\d[\d ().\u00a0\u2010-\u2013/-]{4,28}\d(?![\w=])")
_PHONE_WORDS: Final = (
    r"phone|\btel\b|\btel[.:]|mobile|\bcell\b|\bfax\b|\bcall(?:ed|ing)?\b|\bdial|whats ?app|\bsms\b|\btext (?:me|him|her|us)\b|voicemail"
    r"|hotline|\breach (?:me|us|him|her)\b|answering|messages? (?:to|on)|\bcontact\b|\bring (?:me|us)\b"
)
_PHONE_LABEL: Final = re.compile(
    r"(?:phone|\btel|telephone|mobile|\bcell|\bfax)(?:[ -]?(?:number|no\.?|nr\.?))?(?: is)?\s?[:.#]?\s{0,3}$", re.IGNORECASE
)
_LABEL_BEHIND: Final = re.compile(r"[-(](?:office|fax|phone|mobile|cell|home|work|tel)\b", re.IGNORECASE)
"""A word right behind a number that says what it is: `030 901820-Office`."""
_SHORTER: Final = re.compile(r"[ /][^ /]*$")
_PUNCTUATION: Final = re.compile(r"[()-]")
_LABEL_OPEN: Final = re.compile(r"[-(][A-Za-z]{1,7}\Z")
_WORDS: Final = re2.Options()
_WORDS.log_errors = False
_WORDS.case_sensitive = False
_GROUPS: Final = re.compile(r"\d+")
_NUMBER: Final = re.compile(
    r"(?:19|20)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?P<date>)(?=[\s\"',;)\]}\\]|T\d|$)|\d{7,11}(?=[\s\"',;:)\]}\\]|$)"
)
"""A date, which is nobody's, and digits alone, for which a word has to speak: the most of what the gates stop at."""
_ROW_CHARS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ +().\u00a0\u2010\u2011\u2012\u2013/-"
"""Numbers in groups consist of these characters."""
_ROW: Final = re.compile(r"(?<![A-Z])[A-Z]{2}[ \d]|[+(]{0,2}\d")
_IBAN_OPEN: Final = re.compile(r"(?<![\w-])[A-Za-z]{2}\d{2}(?:[A-Za-z0-9]{0,30}|(?: [A-Za-z0-9]{4}){0,7} ?[A-Za-z0-9]{0,4})\Z")
_STIRRED: Final = ("0-9@", ":A-Z", ":[0-9A-Fa-f:]|[A-Z][A-Z] ")
"""What a finding has within its characters up to the first blank: a digit, the `@` of an address, a colon of an IP address, or two capital
letters alone, with which British national insurance numbers begin."""
_DATE: Final = re.compile(
    r"(?:19|20)\d\d([-/. ])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])(?!\d)"
    r"|(?:[0-2]?\d|3[01])([-/.])(?:[0-2]?\d|3[01])\2(?:(?:19|20)\d\d|\d\d$)"
    r"|(?:19|20)\d\d ?[-/] ?(?:19|20)\d\d$"
)
_EMAIL: Final = re.compile(r"(?<![\w.%+'-])[\w%+][\w.%+'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,4}[^\W\d_]{2,24}(?![\w@-])")
_FILES: Final = frozenset(
    ("png", "jpg", "jpeg", "gif", "svg", "webp", "js", "ts", "css", "json", "html", "py", "md", "txt", "yaml", "yml", "so", "dll", "zip")
)
"""Ends of file names such as `image@2x.png`, none of which is a top-level domain that people have mail under."""
_RESERVED: Final = re.compile(r"(?:^|\.)(?:example\.(?:com|net|org)|(?:example|test|invalid|localhost))$")
"""Domains that RFC 2606 and RFC 6761 keep for examples and tests."""
_ANYBODY: Final = re.compile(
    r"(?:(?:your|my|our|some|any|the|user|email|e-mail|mail|name|address|default|example|sample|test|foo|bar|john|jane|doe|someone|somebody"
    r"|username|first|last|here)[\W_\d]*)+"
)
"""Local parts that stand for any."""
_USER_OF_URL: Final = re.compile(r"://[^\s/]*$")
_IP4: Final = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IP6: Final = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:%\w{1,15})?(?![\w:])")
_PRIVATE: Final = {
    4: tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"))),
    6: tuple(map(ipaddress.ip_network, ("fc00::/7", "fe80::/10"))),
}
"""Addresses that many networks have alike (RFC 1918, 3927, 4193, 4291): without their network they point to nobody."""
_IP_WORDS: Final = re.compile(r"\bip\b|address|host|server|ping|dns|gateway|subnet|\bfrom\b", re.IGNORECASE)
_VERSION_WORDS: Final = re.compile(r"(?:\bv|version|release|\bver\.?|[=<>~!^]=?)\s?[\"']?$", re.IGNORECASE)

_ISSUERS: Final = (
    # first and last prefix, lengths
    (4, 4, (13, 16, 19)),  # Visa
    (51, 55, (16,)),  # Mastercard
    (2221, 2720, (16,)),
    (34, 34, (15,)),  # American Express
    (37, 37, (15,)),
    (300, 305, (14, 16)),  # Diners Club
    (36, 36, (14, 16)),
    (38, 39, (14, 16)),
    (6011, 6011, (16, 19)),  # Discover
    (644, 649, (16, 19)),
    (65, 65, (16, 19)),
    (3528, 3589, (16, 19)),  # JCB
    (62, 62, (16, 17, 18, 19)),  # UnionPay
)
"""Those whose cards are found without a word in front. Maestro's ranges take in one number in four; its cards need the word."""


def luhn(digits: str) -> bool:
    """Luhn's check of ISO/IEC 7812-1: from the right every second digit doubled, digits summed, divisible by ten."""
    total = sum(int(digit) for digit in digits[::-2])
    total += sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return total % 10 == 0


def issued(digits: str) -> bool:
    """Whether an issuer gives out cards of this prefix and length."""
    return any(len(digits) in lengths and first <= int(digits[: len(str(first))]) <= last for first, last, lengths in _ISSUERS)


def _counted(digits: str) -> bool:
    """Whether two thirds of the digits follow their predecessor up or down: of random numbers of 16 digits one in 20,000 does."""
    return 3 * sum(abs(int(b) - int(a)) == 1 for a, b in pairwise(digits)) >= 2 * (len(digits) - 1)


class _Near:
    """Whether a word stands close in front of a place; the text is searched once, and only where somebody asks."""

    def __init__(self, words: re2._Regexp, data: bytes) -> None:
        self._words = words
        self._data = data
        self._begins: list[int] | None = None
        self._ends: list[int] = []

    def stands(self, byte: int) -> bool:
        """Whether a word begins at most `CONTEXT_CHARS` bytes in front of a byte and ends there or before."""
        if self._begins is None:
            self._begins = []
            for match in self._words.finditer(self._data):
                self._begins.append(match.start())
                self._ends.append(match.end())
        # words lie apart and in order, so that the last one that ends before the place is the nearest
        last = bisect_right(self._ends, byte) - 1
        return last >= 0 and self._begins[last] >= byte - CONTEXT_CHARS


class Pii:
    """Finds personal data with a structure.

    Args:
        rule: the id of the rule.
        kinds: of `KINDS`; empty for all.
        regions: ISO 3166 codes of the countries whose phone numbers are found without an international prefix and whose national ids are
            looked for; empty for `DEFAULT_REGIONS`.

    Raises:
        ValueError: a kind or a region is unknown.
    """

    version = VERSION
    before = BEFORE_CHARS
    stirred_by = _STIRRED

    def __init__(self, rule: str, kinds: Collection[str] = (), regions: Collection[str] = ()) -> None:
        unknown = sorted(set(kinds).difference(KINDS))
        if unknown:
            raise ValueError(f"there is no kind of personal data called {unknown[0]}; the kinds are {', '.join(KINDS)}")
        self._regions = tuple(dict.fromkeys(regions or DEFAULT_REGIONS))
        foreign = [region for region in self._regions if region not in phonenumbers.SUPPORTED_REGIONS]
        if foreign:
            raise ValueError(f"there is no region {foreign[0]}; a region is a country as two capital letters, such as DE")
        chosen = [kind for kind in KINDS if not kinds or kind in kinds]
        self._rule = rule
        self._kinds = [kind for kind in chosen if kind != "national_id"]
        self._ids: list[ReadyId] = ready_ids(self._regions) if "national_id" in chosen else []
        self._gate = Gate([_GATES[kind] for kind in self._kinds] + [rf"\b(?:{ready.entry.form})\b" for ready in self._ids])
        self._longest = max(_LONGEST[kind] + _AROUND for kind in chosen)
        named = [f"(?:{ready.entry.words})" for ready in self._ids if ready.entry.words]
        self._words = re2.compile("|".join([_PHONE_WORDS, *dict.fromkeys(named)]), options=_WORDS)
        self._phone_words = re2.compile(_PHONE_WORDS, options=_WORDS)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        return self._longest

    def opens_at(self, text: Scanned) -> int:
        """The last run without a blank may go on, and so may the groups of a number in front of it."""
        form, span = plain(text)
        at = last_break(form)
        low = max(0, len(form) - self._longest)
        label = _LABEL_OPEN.search(form, low)
        row = _ROW.search(form, max(low, len(form.rstrip(_ROW_CHARS)) if label is None else _row_begin(form, label.start())))
        account = _IBAN_OPEN.search(form, low)
        at = min([at, *[match.start() for match in (row, account) if match is not None]])
        return span(at, at + 1)[0] if at else 0

    def scan(self, text: Scanned) -> Sequence[Finding]:
        form, span = plain(text)
        encoded = Encoded(form)
        data = encoded.data
        words, phone_words = _Near(self._words, data), _Near(self._phone_words, data)
        found: list[Finding] = []
        place = self._gate.first(data, 0)
        tried = 0  # where the last run of digits ended that was no phone number
        while place is not None:
            byte, end_byte = place
            at = encoded.char(byte)
            number = _NUMBER.match(form, at)
            if number is not None and (number["date"] is not None or not words.stands(byte)):
                place = self._gate.first(data, byte + number.end() - at)
                continue
            taken: tuple[str, int, int] | None = None
            for index in self._gate.at(data, byte):
                kind = self._kinds[index] if index < len(self._kinds) else "national_id"
                if kind == "phone":
                    if at < tried or taken is not None:
                        continue
                    value, tried = self._phone(form, at, partial(phone_words.stands, byte))
                elif kind == "national_id":
                    value = _national_id(self._ids[index - len(self._kinds)], form, at)
                else:
                    value = _FIND[kind](form, at)
                if value is not None and (taken is None or taken[0] == "phone" or value[1] > taken[2]):
                    taken = (kind, *value)
            if taken is not None:
                found.append(Finding(self._rule, taken[0], *span(taken[1], taken[2])))
                begin = byte + len(form[at : taken[2]].encode("utf-8", "replace"))
            else:
                begin = byte + _word_bytes(data, byte, end_byte)
            place = self._gate.first(data, begin)
        return found

    def _phone(self, form: str, at: int, named: Callable[[], bool]) -> tuple[tuple[int, int] | None, int]:
        """A phone number that begins at a character, and where the run of digits ends that was looked at."""
        run = _RUN.match(form, at)
        if run is None:
            return None, at
        end = run.end()
        for _ in range(3):
            if self._is_phone(form, at, end, named):
                return (at, end), end
            shorter = _SHORTER.search(form, at, end)
            if shorter is None:
                break
            end = shorter.start()
        return None, run.end()

    def _is_phone(self, form: str, at: int, end: int, named: Callable[[], bool]) -> bool:
        written = form[at:end]
        groups = _GROUPS.findall(written)
        digits = sum(map(len, groups))
        if not 7 <= digits <= 15 or _DATE.match(written) or written.count("(") != written.count(")"):
            return False
        if written[0] == "+":
            return _valid(written, None)
        if _PHONE_LABEL.search(form[max(0, at - CONTEXT_CHARS) : at]):
            return True
        if (len(groups) < 3 or digits < 9 or min(map(len, groups)) < 2 or not _PUNCTUATION.search(written)) and not (
            named() or _LABEL_BEHIND.match(form, end)
        ):
            return False
        return any(_valid(written, region) for region in self._regions)


def _row_begin(form: str, end: int) -> int:
    """Where the characters of numbers in groups begin that end at a place."""
    return len(form[:end].rstrip(_ROW_CHARS))


def _valid(written: str, region: str | None) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(written, region))
    except phonenumbers.NumberParseException:
        return False


def _word_bytes(data: bytes, begin: int, end: int) -> int:
    """The bytes of the letters and digits that begin at a byte, at least one: nothing else begins among them."""
    at = begin
    while at < end and (data[at : at + 1].isalnum()):
        at += 1
    return max(1, at - begin)


def _before(form: str, at: int) -> str:
    return form[max(0, at - CONTEXT_CHARS) : at]


def _card(form: str, at: int) -> tuple[int, int] | None:
    match = _CARD.match(form, at)
    if match is None:
        return None
    digits = match.group().replace(" ", "").replace("-", "")
    if not 12 <= len(digits) <= 19 or not luhn(digits) or len(set(digits)) < 2 or _counted(digits):
        return None
    if _CARD_WORDS.search(_before(form, at)):
        return match.span()
    # one number in ten passes Luhn: lengths and prefixes that other numbers often have (article codes, times) need a word in front
    return match.span() if len(digits) in (15, 16) and issued(digits) else None


def _iban(form: str, at: int) -> tuple[int, int] | None:
    match = _IBAN.match(form, at)
    if match is None:
        return None
    begin, end = match.span()
    while not iban.is_valid(form[begin:end], check_country=False):
        # words of the sentence that follow look like further groups
        end = form.rfind(" ", begin, end)
        if end < 0:
            return None
    return begin, end


def _email(form: str, at: int) -> tuple[int, int] | None:
    match = _EMAIL.match(form, at)
    if match is None or match.group().rpartition(".")[2].lower() in _FILES or ".." in match.group():
        return None
    begin, end = match.span()
    local, _, domain = match.group().lower().rpartition("@")
    if _RESERVED.search(domain) and _ANYBODY.fullmatch(local):
        return None
    if match.group().startswith("git@") or _USER_OF_URL.search(form, max(0, begin - 80), begin):
        return None
    return begin, end


def _ip(form: str, at: int) -> tuple[int, int] | None:
    match = _IP4.match(form, at) or _IP6.match(form, at)
    if match is None:
        return None
    try:
        address = ipaddress.ip_address(match.group().partition("%")[0])
    except ValueError:
        return None
    if (
        address.is_loopback
        or address.is_unspecified
        or match.group().startswith("255.255.")
        or any(address in net for net in _PRIVATE[address.version])
    ):
        return None
    before = _before(form, at)
    if address.version == 4:
        small = all(int(part) < 20 for part in match.group().split("."))
        spoken = not _VERSION_WORDS.search(before) and (not small or _IP_WORDS.search(before))
    else:
        # `a::b` is a name of C++ before it is an address
        spoken = len([part for part in match.group().split(":") if part]) >= 3 or int(address) >> 112 in (0x2001, 0xFE80)
    return match.span() if spoken else None


def _national_id(ready: ReadyId, form: str, at: int) -> tuple[int, int] | None:
    match = ready.form.match(form, at)
    if match is None or (ready.words is not None and not ready.words.search(_before(form, at))) or not ready.valid(match.group()):
        return None
    return match.span()


_FIND: Final = {"card": _card, "iban": _iban, "email": _email, "ip": _ip}
