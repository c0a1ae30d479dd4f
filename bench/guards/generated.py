"""Made secrets, by the published formats, in the places where people leave them. No key here was ever issued to anyone."""

import base64
import json
import random
import string
from collections.abc import Callable
from typing import Final, NamedTuple
from zlib import crc32

HEX: Final = "0123456789abcdef"
ALNUM: Final = string.ascii_letters + string.digits
URL64: Final = ALNUM + "-_"
B64: Final = ALNUM + "+/"
BASE32: Final = string.ascii_uppercase + "234567"
BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase


class Made(NamedTuple):
    """A text with one secret in it."""

    text: str
    kind: str
    begin: int
    end: int


def _of(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


def checksummed(rng: random.Random, prefix: str) -> str:
    """A token as GitHub and npm make them: 30 characters and their CRC-32 in base62."""
    body, value, digits = _of(rng, ALNUM, 30), 0, ""
    value = crc32(body.encode())
    while value or len(digits) < 6:
        value, digit = divmod(value, 62)
        digits = BASE62[digit] + digits
    return prefix + body + digits


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def jwt(rng: random.Random) -> str:
    head = _b64url(json.dumps({"alg": rng.choice(("HS256", "RS256")), "typ": "JWT"}).encode())
    body = _b64url(json.dumps({"sub": _of(rng, string.digits, 10), "iat": rng.randrange(10**9, 2 * 10**9)}).encode())
    return f"{head}.{body}.{_of(rng, URL64, 43)}"


def private_key(rng: random.Random) -> str:
    label = rng.choice(("RSA ", "EC ", "OPENSSH ", ""))
    lines = [base64.b64encode(rng.randbytes(48)).decode() for _ in range(rng.randint(3, 25))]
    joint = rng.choice(("\n", "\\n"))
    return joint.join([f"-----BEGIN {label}PRIVATE KEY-----", *lines, f"-----END {label}PRIVATE KEY-----"])


def _password(rng: random.Random) -> str:
    chars = [rng.choice(string.ascii_lowercase), rng.choice(string.ascii_uppercase), rng.choice(string.digits), rng.choice("!#$%^*-_+")]
    chars += rng.choices(ALNUM, k=rng.randint(6, 14))
    rng.shuffle(chars)
    if not chars[0].isalnum():
        chars.insert(0, rng.choice(string.ascii_letters))
    return "".join(chars)


TOKENS: Final[dict[str, Callable[[random.Random], str]]] = {
    "aws_key": lambda r: r.choice(("AKIA", "ASIA")) + _of(r, BASE32, 16),
    "google_key": lambda r: "AIza" + _of(r, URL64, 35),
    "google_oauth_secret": lambda r: "GOCSPX-" + _of(r, URL64, 27) + r.choice(ALNUM),
    "azure_client_secret": lambda r: _of(r, ALNUM, 3) + r.choice("78") + "Q~" + _of(r, ALNUM + "~._", 33) + r.choice(ALNUM),
    "azure_devops_token": lambda r: _of(r, ALNUM, 76) + "AZDO" + _of(r, ALNUM, 4),
    "github_token": lambda r: checksummed(r, r.choice(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"))),
    "github_fine_grained_token": lambda r: f"github_pat_{_of(r, ALNUM, 22)}_{_of(r, ALNUM, 59)}",
    "gitlab_token": lambda r: r.choice(("glpat-", "gldt-", "glrt-")) + _of(r, URL64, 19) + r.choice(ALNUM),
    "slack_token": lambda r: f"xoxb-{_of(r, string.digits, 12)}-{_of(r, string.digits, 12)}-{_of(r, ALNUM, 24)}",
    "slack_webhook": lambda r: f"https://hooks.slack.com/services/T{_of(r, BASE32, 8)}/B{_of(r, BASE32, 8)}/{_of(r, ALNUM, 24)}",
    "stripe_key": lambda r: r.choice(("sk_live_", "rk_live_", "sk_test_")) + _of(r, ALNUM, r.choice((24, 99))),
    "openai_key": lambda r: f"sk-proj-{_of(r, URL64, 74)}T3BlbkFJ{_of(r, URL64, 73)}{r.choice(ALNUM)}",
    "anthropic_key": lambda r: f"sk-ant-api03-{_of(r, URL64, 93)}AA",
    "huggingface_token": lambda r: "hf_" + _of(r, string.ascii_letters, 34),
    "npm_token": lambda r: checksummed(r, "npm_"),
    "pypi_token": lambda r: "pypi-AgEIcHlwaS5vcmc" + _of(r, URL64, r.randint(130, 160)) + r.choice(ALNUM),
    "sendgrid_key": lambda r: f"SG.{_of(r, URL64, 22)}.{_of(r, URL64, 42)}{r.choice(ALNUM)}",
    "twilio_key": lambda r: "SK" + _of(r, HEX, 32),
    "mailgun_key": lambda r: "key-" + _of(r, HEX, 32),
    "mailchimp_key": lambda r: f"{_of(r, HEX, 32)}-us{r.randint(1, 20)}",
    "digitalocean_token": lambda r: "dop_v1_" + _of(r, HEX, 64),
    "shopify_token": lambda r: "shpat_" + _of(r, HEX, 32),
    "databricks_token": lambda r: "dapi" + _of(r, HEX, 32),
    "discord_token": lambda r: f"{_b64url(str(r.randrange(10**17, 10**18)).encode())}.{_of(r, URL64, 6)}.{_of(r, ALNUM, 38)}",
    "telegram_token": lambda r: f"{r.randrange(10**8, 10**10)}:AA{_of(r, URL64, 32)}{r.choice(ALNUM)}",
    "vault_token": lambda r: "hvs." + _of(r, ALNUM, 90),
    "notion_token": lambda r: f"ntn_{_of(r, string.digits, 11)}{_of(r, ALNUM, 35)}",
    "postman_key": lambda r: f"PMAK-{_of(r, HEX, 24)}-{_of(r, HEX, 34)}",
    "grafana_token": lambda r: f"glsa_{_of(r, ALNUM, 32)}_{_of(r, HEX, 8)}",
    "terraform_token": lambda r: f"{_of(r, ALNUM, 14)}.atlasv1.{_of(r, ALNUM, 67)}",
    "rubygems_key": lambda r: "rubygems_" + _of(r, HEX, 48),
    "docker_token": lambda r: "dckr_pat_" + _of(r, URL64, 26) + r.choice(ALNUM),
    "groq_key": lambda r: "gsk_" + _of(r, ALNUM, 52),
    "replicate_token": lambda r: "r8_" + _of(r, ALNUM, 37),
    "google_oauth_token": lambda r: "ya29." + _of(r, URL64, 140) + r.choice(ALNUM),
    "slack_app_token": lambda r: f"xapp-1-A{_of(r, BASE32, 10)}-{_of(r, string.digits, 13)}-{_of(r, HEX, 64)}",
    "stripe_webhook_secret": lambda r: "whsec_" + _of(r, ALNUM, 32),
    "square_token": lambda r: "sq0atp-" + _of(r, URL64, 21) + r.choice(ALNUM),
    "doppler_token": lambda r: "dp.pt." + _of(r, ALNUM, 43),
    "linear_key": lambda r: "lin_api_" + _of(r, ALNUM, 40),
    "newrelic_key": lambda r: "NRAK-" + _of(r, string.ascii_uppercase + string.digits, 27),
    "perplexity_key": lambda r: "pplx-" + _of(r, ALNUM, 48),
    "xai_key": lambda r: "xai-" + _of(r, ALNUM, 80),
    "atlassian_token": lambda r: "ATATT3" + _of(r, URL64, 176) + "=" + _of(r, HEX.upper(), 8),
    "heroku_key": lambda r: "HRKU-AA" + _of(r, URL64, 57) + r.choice(ALNUM),
    "age_key": lambda r: "AGE-SECRET-KEY-1" + _of(r, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "jwt": jwt,
    "private_key": private_key,
}
"""Values that say themselves what they are."""

_PLACES: Final = (
    "export API_KEY={}",
    'api_key = "{}"',
    "my key is {} please use it",
    '{{"credentials": {{"value": "{}"}}}}',
    "+    value: {}\n",
    "curl -H 'X-Key: {}' https://api.internal/v1",
    "Here is the config:\n\nname: app\nkey: {}\nregion: eu\n",
    "{}",
    "why does client.connect('{}') fail with 401?",
)

NAMED: Final[dict[str, tuple[Callable[[random.Random], str], tuple[str, ...]]]] = {
    "aws_secret": (
        lambda r: _of(r, B64, 39) + r.choice(ALNUM),
        ("AWS_SECRET_ACCESS_KEY={}", 'aws_secret_access_key = "{}"', "my aws secret key is {} ok"),
    ),
    "azure_storage_key": (
        lambda r: _of(r, B64, 86) + "==",
        ("DefaultEndpointsProtocol=https;AccountName=store;AccountKey={};EndpointSuffix=core.windows.net", "AccountKey={}"),
    ),
    "connection_password": (
        _password,
        (
            "postgres://app:{}@db.internal:5432/app",
            "DATABASE_URL=mysql+pymysql://svc:{}@10.0.0.4/shop",
            "redis://:{}@cache:6379/0",
            "mongodb+srv://app:{}@c0.abc.mongodb.net",
        ),
    ),
    "azure_sas": (
        lambda r: _of(r, ALNUM, 20) + "%2B" + _of(r, ALNUM, 22) + "%3D",
        ("https://store.blob.core.windows.net/c/f.txt?sv=2024-11-04&se=2026-01-01T00%3A00%3A00Z&sr=b&sp=r&sig={}", "?sv=2024-11-04&sig={}"),
    ),
    "basic_credentials": (
        lambda r: base64.b64encode(f"svc:{_password(r)}".encode()).decode(),
        ("Authorization: Basic {}", "curl -H 'Authorization: Basic {}' https://api.internal/v1"),
    ),
    "assigned_secret": (
        lambda r: _of(r, ALNUM, r.randint(24, 48)),
        ('client_secret: "{}"', "SECRET_KEY = '{}'", "Authorization: Bearer {}", "api-key={}", '"accessToken": "{}"'),
    ),
    "password": (_password, ('password = "{}"', "PASSWORD={}", "the password is {} and the user is bob", "db_password: {}")),
}
"""Values that a name in front says what they are, with such places."""


def secrets(seed: int, each: int) -> list[Made]:
    """`each` texts for every kind, the same for the same seed."""
    rng = random.Random(seed)
    made = []
    for kind, token in TOKENS.items():
        for _ in range(each):
            made.append(_put(rng.choice(_PLACES), token(rng), kind))
    for kind, (token, places) in NAMED.items():
        for _ in range(each):
            made.append(_put(rng.choice(places), token(rng), kind))
    return made


def _put(place: str, value: str, kind: str) -> Made:
    before, after = (part.replace("{{", "{").replace("}}", "}") for part in place.split("{}") if True)
    return Made(before + value + after, kind, len(before), len(before) + len(value))


def negatives(seed: int, count: int) -> list[str]:
    """Texts that look like secrets and are none: hashes, UUIDs, lock files, images, examples, names."""
    rng = random.Random(seed)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: f"commit {_of(rng, HEX, 40)}\nAuthor: dev",
        lambda: f"token id {_of(rng, HEX, 8)}-{_of(rng, HEX, 4)}-4{_of(rng, HEX, 3)}-a{_of(rng, HEX, 3)}-{_of(rng, HEX, 12)}",
        lambda: f"    --hash=sha256:{_of(rng, HEX, 64)} \\\n    --hash=sha256:{_of(rng, HEX, 64)}",
        lambda: f'"integrity": "sha512-{_of(rng, B64, 86)}=="',
        lambda: f'<img src="data:image/png;base64,iVBORw0KGgo{_of(rng, B64, 400)}">',
        lambda: f"index {_of(rng, HEX, 7)}..{_of(rng, HEX, 7)} 100644",
        lambda: 'aws_access_key_id = "AKIAIOSFODNN7EXAMPLE"',
        lambda: f"ghp_{_of(rng, ALNUM, 36)} is a wrong checksum" if rng.random() < 0.5 else "api_key = os.environ['OPENAI_API_KEY']",
        lambda: "password = get_password_from_vault(name)  # TODO2",
        lambda: 'secret_key: "your-secret-key-goes-here-1234"',
        lambda: "token = self._next_token_from_stream_2",
        lambda: "postgres://user:password@localhost:5432/db and https://${USER}:${PASS}@host",
        lambda: f"session_token_hash = '{_of(rng, HEX, 40)}'",
        lambda: f"trace {_of(rng, HEX, 32)} span {_of(rng, HEX, 16)}",
        lambda: f"go.sum: github.com/a/b v1.2.3 h1:{_of(rng, B64, 43)}=",
    )
    return [rng.choice(kinds)() for _ in range(count)]
