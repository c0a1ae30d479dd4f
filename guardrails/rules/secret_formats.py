"""The formats of keys, tokens and passwords, and what tells a real one from an example, a hash or a name. Pure.

Each format was written from what its provider publishes: prefix, alphabet, length, and where there is one the checksum. GitHub and npm
publish that the last six characters of a token are the CRC-32 of the 30 before them in base62; libraries of their users know two orders of
that alphabet, so both count. A format without a checksum asks for the entropy of random characters, and a value without a prefix asks for
a word in front that says what it is.
"""

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Final
from zlib import crc32

import msgspec

KEY_BLOCK_CHARS: Final = 8192
"""The longest private key block: RSA of 8,192 bits is about 6,500 characters, more where line breaks are escaped."""
JWT_CHARS: Final = 4096

Check = Callable[[str], bool]


class Format(msgspec.Struct, frozen=True):
    """How the secrets of one kind are written."""

    kind: str
    gate: str
    """A short expression in the syntax that RE2 and `re` share. Each secret of the kind has a match of it, and other text rarely has."""
    exact: re.Pattern[str]
    """The secret itself; its group `s`, where it has one, is the finding."""
    check: Check
    """Whether what matched is a secret; it gets the finding's text."""
    back: int = 0
    """How many characters before the gate's match the secret may begin."""
    longest: int = 128
    """The most characters that `exact` matches."""
    yields: bool = False
    """Whether findings of other kinds in the same place take precedence."""


def entropy(text: str) -> float:
    """Shannon's entropy of a text's characters in bits for each: -Σ p·log2 p. 0 for an empty text."""
    total = len(text)
    return -sum(count / total * math.log2(count / total) for count in Counter(text).values()) if total else 0.0


_EXAMPLE: Final = re.compile(
    r"example|sample|your|placeholder|change.?me|redacted|dummy|insert|xxxx|\*\*\*|\.\.\.|000000|123456789|abcdefgh|\bfake\b|<|\$\{|%\(",
    re.IGNORECASE,
)


def _steps(text: str) -> int:
    """How many characters follow their predecessor in the alphabet, upwards or downwards, or repeat it."""
    return sum(-1 <= ord(b) - ord(a) <= 1 for a, b in pairwise(text))


def random_like(text: str, bits: float = 3.0) -> bool:
    """Whether a value was drawn at random rather than written: enough entropy, no sequence, no word that marks examples."""
    return entropy(text) >= min(bits, 0.8 * math.log2(max(2, len(text)))) and _steps(text) < 0.45 * len(text) and not _EXAMPLE.search(text)


_BASE62: Final = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
)


def base62_crc(body: str, order: int = 0) -> str:
    """The six characters that end a token of GitHub or npm: CRC-32 of the 30 characters in front, in base62, filled up with zeros."""
    value, digits = crc32(body.encode()), ""
    for _ in range(6):
        value, digit = divmod(value, 62)
        digits = _BASE62[order][digit] + digits
    return digits


def _crc(token: str) -> bool:
    body = token.rpartition("_")[2]
    return body[-6:] in (base62_crc(body[:-6], 0), base62_crc(body[:-6], 1))


def _bytes_of(text: str) -> bytes:
    """What URL-safe base64 without padding says; nothing where it is none."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""


def _jwt(token: str) -> bool:
    try:
        head = msgspec.json.decode(_bytes_of(token.partition(".")[0]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return isinstance(head, dict) and "alg" in head


def _discord(token: str) -> bool:
    return _bytes_of(token.partition(".")[0]).isdigit() and random_like(token)


def _basic(value: str) -> bool:
    return b":" in _bytes_of(value.replace("+", "-").replace("/", "_").rstrip("="))


def _block(text: str) -> bool:
    """A key block holds base64; prose and code about such blocks does not."""
    body = re.sub(r"-----[^-]*-----|\\[nr]|\s", "", text)[:64]
    return len(body) >= 40 and random_like(body, 3.5)


_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_DIGEST: Final = re.compile(r"(?:sha\d+[-:])?[0-9a-f]{40}|(?:sha(?:1|224|256|384|512)|md5)[-:=]\S+", re.IGNORECASE)


def _class_of(char: str) -> int:
    return 0 if char.islower() else 1 if char.isupper() else 2 if char.isdigit() else 3


def assigned(value: str) -> bool:
    """Whether a value behind `secret=` and the like is random: letters and digits mixed as no name mixes them, and no hash or UUID."""
    if _UUID.fullmatch(value) or _DIGEST.fullmatch(value) or not random_like(value, 3.2):
        return False
    classes = [_class_of(char) for char in value]
    changes = sum(a != b for a, b in pairwise(classes))
    return classes.count(2) >= 2 and any(c < 2 for c in classes) and changes >= 0.28 * len(value)


def password(value: str) -> bool:
    """Whether a value behind `password=` looks like a password rather than like a name, an expression or an example: three classes of
    characters, and more than the word itself with a number behind it, such as `MyPassword123!`."""
    return (
        not _WORD_ITSELF.fullmatch(value)
        and len({_class_of(char) for char in value}) >= 3
        and any(map(str.isdigit, value))
        and entropy(value) >= 2.6
        and not _EXAMPLE.search(value)
    )


_WORD_ITSELF: Final = re.compile(
    r"(?:my|your|the|new|old|user|admin|secure|strong|safe|super|secret|test|temp|default|[_.-])*pass(?:word|wd|phrase)?[\W_]?\d{0,4}[\W_]?",
    re.IGNORECASE,
)
_PLACEHOLDERS: Final = frozenset(
    ("password", "passwd", "pass", "pwd", "secret", "user", "username", "postgres", "root", "admin", "test", "token", "guest", "foo", "bar")
)


def url_password(value: str) -> bool:
    """Whether the password of a connection string is one, and no stand-in for one."""
    return (
        len(value) >= 4
        and value.lower() not in _PLACEHOLDERS
        and not _EXAMPLE.search(value)
        and value[0] not in "$<{[%*"
        and entropy(value) > 1
    )


def _prefixed(kind: str, prefix: str, body: str, longest: int = 128, check: Check = random_like) -> Format:
    """A format with a prefix of its own, which no letter or digit stands in front of or behind."""
    return Format(kind, prefix, re.compile(rf"(?<![A-Za-z0-9_-])(?:{prefix})(?:{body})(?![A-Za-z0-9])", re.ASCII), check, longest=longest)


_W: Final = "[A-Za-z0-9_-]"
_A: Final = "[A-Za-z0-9]"
_H: Final = "[0-9a-f]"
_SEP: Final = r"""["']?\]?\s{0,3}(?::=|=>|[:=])\s{0,3}(?:[bru]{0,2}["'`])?"""

_BLOCK: Final = re.compile(
    r"-----BEGIN (?P<label>(?:[A-Z0-9]{2,12} ){0,3}PRIVATE KEY(?: BLOCK)?)-----"
    rf"(?:(?!-----)[\s\S]){{40,{KEY_BLOCK_CHARS - 100}}}(?:-----END (?P=label)-----)?"
)

_BLOCK_HEAD: Final = re.compile(r"-----BEGIN (?:[A-Z0-9 ]{0,60}-{0,4}\Z|[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)")
_BLOCK_TAIL: Final = re.compile(r"-----(?:E(?:N(?:D(?: [A-Z0-9 ]{0,60}(?:-{0,5})?)?)?)?)?\Z")


def key_block_opens_at(form: str) -> int:
    """Where a key block begins that more text may complete or lengthen; the end of the text where none does.

    A block ends where its length does, or at the next five dashes, with the line that they begin where this line is its end.
    """
    at = form.rfind("-----BEGIN ", max(0, len(form) - KEY_BLOCK_CHARS))
    head = _BLOCK_HEAD.match(form, at) if at >= 0 else None
    if head is None:
        return len(form)
    dashes = form.find("-----", head.end()) if head.end() < len(form) else -1
    return at if dashes < 0 or _BLOCK_TAIL.match(form, dashes) else len(form)


FORMATS: Final[tuple[Format, ...]] = (
    _prefixed("aws_key", "AKIA|ASIA|ABIA|ACCA", "[A-Z2-7]{16}"),
    Format(
        "aws_secret",
        r"(?i:aws|secret[_-]?access[_-]?key)",
        re.compile(
            rf"(?i:aws.{{0,20}}(?:secret|key)|secret[_-]?access[_-]?key)[\w.-]{{0,12}}(?:{_SEP}|\s{{1,3}}(?:is\s)?)(?P<s>[A-Za-z0-9/+]{{40}})(?![A-Za-z0-9/+=])"
        ),
        lambda s: random_like(s, 4.0) and not _DIGEST.fullmatch(s),
        longest=120,
    ),
    _prefixed("google_key", "AIza", "[A-Za-z0-9_-]{35}"),
    _prefixed("google_oauth_secret", "GOCSPX-", _W + "{28}"),
    _prefixed("google_oauth_token", r"ya29\.", _W + "{30,240}", 256),
    Format(
        "azure_storage_key",
        "(?i:AccountKey|SharedAccessKey)=",
        re.compile(r"(?i:AccountKey|SharedAccessKey)=(?P<s>[A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==)"),
        random_like,
    ),
    Format(
        "azure_client_secret",
        "[0-9]Q~",
        re.compile(r"(?<![\w~.-])[\w~.-]{3}[0-9]Q~[\w~.-]{31,34}(?![\w~-])", re.ASCII),
        random_like,
        back=3,
    ),
    Format("azure_devops_token", "AZDO", re.compile(rf"(?<!{_A}){_A}{{76}}AZDO{_A}{{4}}(?!{_A})"), random_like, back=76),
    Format("azure_sas", "[?&]sig=", re.compile(r"[?&]sig=(?P<s>[A-Za-z0-9%+/]{43,70}(?:%3[Dd]|=))"), random_like),
    _prefixed("github_token", "gh[pousr]_", _A + "{36}", check=_crc),
    _prefixed("github_fine_grained_token", "github_pat_", f"{_A}{{22}}_{_A}{{59}}"),
    _prefixed(
        "gitlab_token", "gl(?:pat|dt|ptt|rt|cbt|ft|soat|agent|oas|imt|ffct)-", rf"{_W}{{20,300}}(?:\.[0-9a-z]{{2}}\.?[0-9a-z]{{7,9}})?", 330
    ),
    _prefixed("slack_token", "xox[abeoprs]-", "[A-Za-z0-9-]{20,240}|[A-Za-z0-9.-]{40,240}", 256),
    _prefixed("slack_app_token", "xapp-[0-9]-", f"[A-Z0-9]{{8,16}}-[0-9]{{8,16}}-{_H}{{64}}"),
    Format(
        "slack_webhook",
        r"hooks\.slack\.com/",
        re.compile(
            rf"(?:https?://)?hooks\.slack\.com/(?:services|workflows)/[A-Z0-9]{{8,14}}/[A-Z0-9]{{8,14}}/(?:[0-9]{{10,20}}/)?{_A}{{20,32}}(?!{_A})"
        ),
        random_like,
        back=8,
    ),
    _prefixed("stripe_key", "[sr]k_(?:live|test)_", _A + "{24,128}", 160),
    _prefixed("stripe_webhook_secret", "whsec_", "[A-Za-z0-9+/]{32,64}={0,2}"),
    _prefixed("openai_key", "sk-", rf"(?:(?:proj|svcacct|admin|None)-)?{_W}{{20,80}}T3BlbkFJ{_W}{{20,80}}", 200),
    _prefixed("anthropic_key", "sk-ant-", rf"[a-z]{{3,6}}[0-9]{{2}}-{_W}{{80,120}}", 160),
    _prefixed("huggingface_token", "hf_|api_org_", "[A-Za-z]{34}"),
    _prefixed("npm_token", "npm_", _A + "{36}", check=_crc),
    _prefixed("pypi_token", "pypi-AgE(?:IcHlwaS5vcmc|NdGVzdC5weXBpLm9yZw)", _W + "{50,220}", 256),
    _prefixed("sendgrid_key", r"SG\.", rf"{_W}{{22}}\.{_W}{{43}}"),
    _prefixed("twilio_key", "SK[0-9a-f]{8}", _H + "{24}"),
    _prefixed("mailgun_key", "key-[0-9a-f]{8}", _H + "{24}"),
    Format("mailchimp_key", "-us[0-9]", re.compile(rf"(?<![\w-]){_H}{{32}}-us[0-9]{{1,2}}(?!\w)"), random_like, back=32),
    _prefixed("digitalocean_token", "do[opr]_v1_", _H + "{64}"),
    _prefixed("shopify_token", "shp(?:at|ca|pa|ss)_", "[0-9a-fA-F]{32}"),
    _prefixed("square_token", "sq0(?:atp|csp|idp)-", _W + "{22,43}"),
    _prefixed("databricks_token", "dapi[0-9a-f]{8}", _H + "{24}(?:-[0-9])?"),
    Format(
        "discord_token",
        r"[MNO][A-Za-z0-9_-]{22,30}\.[A-Za-z0-9_-]{6}\.",
        re.compile(rf"(?<![\w.-])[MNO]{_W}{{22,30}}\.{_W}{{6}}\.{_W}{{27,45}}(?![\w-])"),
        _discord,
    ),
    Format("telegram_token", ":AA", re.compile(rf"(?<![\w-])[0-9]{{8,10}}:AA{_W}{{33}}(?![\w-])"), random_like, back=10),
    _prefixed("vault_token", r"hv[sbr]\.", _W + "{24,220}", 256),
    _prefixed("doppler_token", r"dp\.(?:pt|st|ct|sa|scim|audit)\.", rf"(?:[a-z0-9_-]{{2,35}}\.)?{_A}{{40,44}}"),
    _prefixed("linear_key", "lin_(?:api|oauth)_", _A + "{40,64}"),
    _prefixed("notion_token", "ntn_", "[0-9]{11}" + _A + "{35}"),
    _prefixed("postman_key", "PMAK-", _H + "{24}-" + _H + "{34}"),
    _prefixed("grafana_token", "glsa_", f"{_A}{{32}}_[0-9a-fA-F]{{8}}"),
    _prefixed("newrelic_key", "NRAK-", "[A-Z0-9]{27}"),
    Format(
        "terraform_token",
        r"\.atlasv1\.",
        re.compile(rf"(?<![\w.-]){_A}{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{60,70}}(?![\w-])"),
        random_like,
        back=14,
    ),
    _prefixed("rubygems_key", "rubygems_", _H + "{48}"),
    _prefixed("docker_token", "dckr_(?:pat|oat)_", _W + "{27,32}"),
    _prefixed("groq_key", "gsk_", _A + "{52}"),
    _prefixed("replicate_token", "r8_", _A + "{37}"),
    _prefixed("perplexity_key", "pplx-", _A + "{40,64}"),
    _prefixed("xai_key", "xai-", _A + "{70,90}"),
    _prefixed("atlassian_token", "AT(?:ATT3|CTT3|BBT3)", "[A-Za-z0-9_=-]{60,240}", 256),
    _prefixed("heroku_key", "HRKU-", _W + "{36,60}"),
    _prefixed("age_key", "AGE-SECRET-KEY-1", "[02-9AC-HJ-NP-Z]{58}"),
    Format("private_key", "-----BEGIN [A-Z0-9 ]{0,36}PRIVATE KEY", _BLOCK, _block, longest=KEY_BLOCK_CHARS),
    Format(
        "jwt",
        "eyJ[A-Za-z0-9_-]{8}",
        re.compile(rf"(?<![\w.-])eyJ{_W}{{8,500}}\.eyJ{_W}{{8,{JWT_CHARS - 1100}}}\.{_W}{{20,512}}"),
        _jwt,
        longest=JWT_CHARS,
    ),
    Format(
        "connection_password",
        r"://[^\s/:@\"'`<>]{0,64}:[^\s/@\"'`<>]{1,128}@",
        re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'`<>]{0,64}:(?P<s>[^\s/@\"'`<>]{1,128})@[\w\[]"),
        url_password,
        back=22,
        longest=240,
    ),
    Format(
        "basic_credentials",
        "(?i:authorization[\"']?: ?[\"']?basic )",
        re.compile(r"(?i:authorization[\"']?: ?[\"']?basic )(?P<s>[A-Za-z0-9+/]{8,200}={0,2})"),
        _basic,
        longest=240,
    ),
    Format(
        "assigned_secret",
        r"""(?i:(?:secret|token|(?:api|access|private|auth|encryption|signing)[_-]?key)[A-Za-z_]{0,16}["']?\]?\s{0,3}(?:=>|[:=])|bearer\s)""",
        re.compile(
            r"(?i:(?:secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key|encryption[_-]?key|signing[_-]?key)"
            rf"[A-Za-z_]{{0,16}}{_SEP}(?:bearer\s)?|bearer\s)(?P<s>[A-Za-z0-9_.+/=~-]{{16,200}})(?![A-Za-z0-9_(\[-])"
        ),
        assigned,
        longest=260,
        yields=True,
    ),
    Format(
        "password",
        r"""(?i:(?:password|passwd|passphrase|pwd)(?:["']?\]?\s{0,3}(?:=>|[:=])|\sis\s))""",
        re.compile(rf"(?i:password|passwd|passphrase|pwd)(?:{_SEP}|\sis\s[\"'`]?)(?P<s>[^\s\"'`<>(){{}}\[\],;]{{8,128}})(?![(\[])"),
        password,
        longest=190,
        yields=True,
    ),
)
"""All that are known, by kind; one that `yields` gives way to the others."""

KINDS: Final = tuple(entry.kind for entry in FORMATS)
