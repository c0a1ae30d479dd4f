"""A thousand hostile `Authorization` headers at both ports: one answer, always the same, and no traceback (R12)."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from domain.identity import KeyId
from tenancy.keys import SECRET_BYTES, mint_again
from tests.replicas import Reply, Tenancy, read_reply, replicas
from tests.scale import scaled

SIM = SimSettings(models=("sim",), instant=True)
VECTORS = 1000
ATTACKS = (
    "' OR '1'='1", "'; DROP TABLE api_key; --", '" UNION SELECT * FROM tenant --', "admin'/*", "1; SELECT pg_sleep(10)", "$(reboot)",
    "`id`", "{{7*7}}", "${jndi:ldap://127.0.0.1/a}", "../../../etc/passwd", "%00", "%0d%0aset-cookie: a=b", "<script>alert(1)</script>",
    "*)(uid=*))(|(uid=*", "{'$gt': ''}", "\\u0000", "null", "undefined", "NaN", "true", "[]", "{}", "-1", "1e999", "Bearer", "..",
    "gw_live_", "gw__", "gw_live_0000000000_", "eyJhbGciOiJub25lIn0.e30.", "a.b.c", "%s%s%s%n", "{0.__class__}", "\t", "\xa0", "\xff\xfe",
)  # fmt: skip
SCHEMES = ("Bearer ", "bearer ", "BEARER\t", "Bearer", "Basic ", "Digest ", "", "Bearer  ", "Token ", "Bearer,", "Bearer=")
IMPOSSIBLE = (b"Bearer a\x00b", b"\x00", b"Bearer a\x01b", b"Bearer a\x7fb", b"Bearer a\nb")
"""No header may have these in it (RFC 9110, 5.5): the request is no HTTP, and may be refused as such."""


def hostile(key: str) -> list[bytes]:
    """Everything a header may carry, and keys that are nearly right."""
    dice = random.Random(12)
    key_id = KeyId(key.split("_")[2])
    vectors = [b"", b"Bearer " + b"a" * 12_000, b"Bearer " + key.encode()[:-1], b"Bearer " + key.encode() + b"x", b"Basic " + key.encode()]
    vectors += [f"Bearer {mint_again('live', key_id, dice.randbytes(SECRET_BYTES)).text}".encode() for _ in range(50)]
    while len(vectors) < VECTORS:
        parts = [dice.choice((*ATTACKS, key[: dice.randrange(len(key))], "".join(map(chr, dice.choices(range(0x80, 0x100), k=9)))))]
        parts += dice.choices(ATTACKS, k=dice.randrange(3))
        text = dice.choice(("", " ", "_", ";")).join(parts) * dice.choice((1, 1, 1, 40))
        # bytes beyond ASCII in either encoding: UTF-8 with letters and a mark that turns the line around, and what is no UTF-8
        front = dice.choice(SCHEMES) + dice.choice(("", "\u043a\u043b\u044e\u0447", "\U0001d4c0", "\u202e"))
        vectors.append(front.encode() + text.encode(dice.choice(("utf-8", "latin-1"))))
    return vectors


async def ask(port: int, path: bytes, value: bytes, header: bytes = b"authorization") -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %b HTTP/1.1\r\nhost: gateway\r\n%b: %b\r\nconnection: close\r\n\r\n" % (path, header, value))
    raw = await reader.read(-1)
    writer.close()
    return read_reply(raw, 0.0)


Shape = tuple[int, tuple[str, ...], bytes]


def shape(reply: Reply) -> Shape:
    """Status, names of the headers, and the body without its ids."""
    return reply.status, tuple(sorted(reply.headers)), re.sub(rb"req-[A-Za-z0-9_-]+", b"ID", reply.body)


@pytest.mark.slow
@pytest.mark.req("R12")
async def test_whatever_stands_in_authorization_the_answer_is_the_same(tmp_path: Path, record_property: Any) -> None:
    tenancy = Tenancy(["acme"])
    async with SimEngine(SIM) as engine, replicas(tmp_path, 1, tenancy, engine=engine.url, counters="memory://") as made:
        (one,) = made
        vectors = hostile(tenancy.keys["acme"])
        ports = {"data": (one.data_port, b"/v1/models"), "admin": (one.admin_port, b"/admin/v1/tenants")}
        answers: dict[str, set[Shape]] = {}
        for name, (port, path) in ports.items():
            for header in (b"authorization", b"x-api-key") if name == "data" else (b"authorization",):
                found = set()
                for start in range(0, len(vectors), 50):
                    replies = await asyncio.gather(*(ask(port, path, v, header) for v in vectors[start : start + 50]))
                    found |= {shape(reply) for reply in replies}
                answers[f"{name} {header.decode()}"] = found
            for value in (*IMPOSSIBLE, b"Bearer " + b"a" * scaled(100_000, 1_000_000)):
                assert (await ask(port, path, value)).status in (0, 400, 401, 431)
            assert (await ask(port, path, b"Bearer " + tenancy.keys["acme"].encode())).status == (200 if name == "data" else 401)
        log = one.errors
    for where, found in answers.items():
        assert {status for status, _, _ in found} == {401}, where
        assert len({headers for _, headers, _ in found}) == 1, where
    # the data port says whether there was a key in it at all, as OpenAI's does; of what there was it says nothing
    assert [len(found) for found in answers.values()] == [2, 2, 1]
    record_property("figure", f"{VECTORS} vectors in 2 headers of the data port and one of the admin port: all 401; 0 tracebacks")
    assert "Traceback" not in log
    assert "DROP TABLE" not in log
