"""An identity provider for tests: keys made by `cryptography`, tokens signed with them, documents served over HTTP on loopback."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

NOW = 1_800_000_000.0
ISSUER = "https://login.example.com/realms/llm"

_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Made once per number: it takes a tenth of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@dataclass(frozen=True)
class Signer:
    """One private key, its name and the algorithm it signs with."""

    kid: str
    algorithm: str
    private: Any

    @property
    def jwk(self) -> dict[str, Any]:
        """The public part, as an issuer publishes it."""
        public = self.private.public_key()
        writer: Any = RSAAlgorithm if self.algorithm[:2] in ("RS", "PS") else OKPAlgorithm if self.algorithm == "EdDSA" else ECAlgorithm
        return {**writer.to_jwk(public, as_dict=True), "kid": self.kid, "alg": self.algorithm, "use": "sig"}

    def token(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token; a claim that is None is left out."""
        payload = {name: value for name, value in (claims_of() | claims).items() if value is not None}
        return jwt.encode(payload, self.private, algorithm=self.algorithm, headers={"kid": self.kid, **(header or {})})


def signer(kid: str = "k1", algorithm: str = "RS256", number: int = 0) -> Signer:
    """A signer with a key of its own."""
    if algorithm == "EdDSA":
        return Signer(kid, algorithm, ed25519.Ed25519PrivateKey.generate())
    if algorithm in _CURVES:
        return Signer(kid, algorithm, ec.generate_private_key(_CURVES[algorithm]()))
    return Signer(kid, algorithm, rsa_key(number))


def claims_of(now: float = NOW) -> dict[str, Any]:
    """What a good token says."""
    return {"iss": ISSUER, "aud": "tidegate", "sub": "user-1", "tenant": "acme", "iat": int(now), "nbf": int(now), "exp": int(now) + 600}


def part(value: Any) -> str:
    """A part of a token: JSON (or bytes as they are) in base64url."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def document(*signers: Signer) -> bytes:
    """A JWKS document."""
    return json.dumps({"keys": [s.jwk for s in signers]}).encode()


@dataclass
class Issuer:
    """A running issuer: what it answers by path, and what it was asked."""

    url: str
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    headers: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    delay_s: float = 0.0

    def publish(self, *signers: Signer) -> None:
        """Serve these keys, and the discovery document that leads to them."""
        discovered = json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        self.answers = {"/.well-known/openid-configuration": (200, discovered), "/keys": (200, document(*signers))}


@asynccontextmanager
async def issuer(*signers: Signer) -> AsyncIterator[Issuer]:
    """Serve keys on a free loopback port."""
    made = Issuer("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            made.asked.append(path)
            await asyncio.sleep(made.delay_s)
            status, body = made.answers.get(path, (404, b"{}"))
            more = made.headers.get(path, b"")
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b" % (status, len(body), more, body))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    made.publish(*signers)
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
