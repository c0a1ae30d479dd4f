"""Laws of the steps around a request: who gets in, what is reserved, and that each hold and each request is closed once."""

import pytest
from msgspec import structs

from domain.faults import Kind
from domain.identity import KeyId, ProjectId, TenantId
from gateway.http.edge.exchange import OwnRequest
from gateway.request.authenticate import authenticate
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.keys import KeyRecord, digest_of
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.request_path import KEY, PEPPER, Engine, Path, caller, directory, fault_of

TENANT = Scope(Level.TENANT, "acme")
ONE = [Limit(TENANT, Meter.REQUESTS, Window.MINUTE, 1)]
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True}
JSON = b"application/json"


async def test_a_key_is_taken_from_either_header_and_is_the_callers() -> None:
    path = Path(a=Engine())
    for headers in ({"authorization": f"Bearer {KEY.text}".encode()}, {"x_api_key": KEY.text.encode()}):
        story = path.story(caller=None)
        found = await authenticate(caller(**headers)[0], story, path.deps)
        assert (found.tenant, story.asked.caller) == ("acme", found)


async def test_a_request_of_the_gateway_itself_is_its_callers_while_the_key_is_valid() -> None:
    path = Path(a=Engine())
    known = await authenticate(caller(authorization=f"Bearer {KEY.text}".encode())[0], path.story(caller=None), path.deps)
    exchange, _ = caller(authorization=b"Basic x")
    exchange.head.headers.pop(b"authorization")
    exchange.own = OwnRequest(known, 50)
    story = path.story(caller=None)
    assert await authenticate(exchange, story, path.deps) is known
    assert (story.asked.caller, story.asked.price_percent) == (known, 50)
    exchange.own = OwnRequest(structs.replace(known, key_id=KeyId("revoked")))
    assert (await fault_of(authenticate(exchange, path.story(caller=None), path.deps))).kind is Kind.KEY_INVALID
    exchange.own = OwnRequest(structs.replace(known, key_id=KeyId("jwt:subject"), project=ProjectId("gone")))
    assert (await fault_of(authenticate(exchange, path.story(caller=None), path.deps))).kind is Kind.KEY_INVALID


async def test_whatever_is_wrong_with_a_key_is_said_in_one_way() -> None:
    path = Path(a=Engine())
    words = set()
    for given in (b"Bearer nonsense", b"Bearer " + KEY.text.encode()[:-1] + b"?"):
        story = path.story(caller=None)
        fault = await fault_of(authenticate(caller(authorization=given)[0], story, path.deps))
        words.add((fault.kind, fault.message))
        assert story.asked.caller is None
    assert len(words) == 1
    assert (await fault_of(authenticate(caller(authorization=b"Basic x")[0], path.story(), path.deps))).kind is Kind.KEY_MISSING


@pytest.mark.parametrize(
    ("client", "allowed"),
    [("203.0.113.9", True), ("203.0.114.9", False), ("2001:db8::5", True), ("2001:db9::5", False), ("", False)],
)
@pytest.mark.parametrize("header", ["authorization", "x_api_key"])
async def test_a_key_is_refused_outside_its_networks(client: str, allowed: bool, header: str) -> None:
    path = Path(a=Engine())
    digests = (digest_of(PEPPER.secret, KEY.secret),)
    networks = ("2001:db8::/32", "203.0.113.0/24")
    path.deps.live.directory = directory([KeyRecord(KEY.id, TenantId("acme"), DEFAULT_PROJECT, PEPPER.kid, digests, networks=networks)], ())
    exchange, _ = caller(**{header: (f"Bearer {KEY.text}" if header == "authorization" else KEY.text).encode()})
    exchange.client = client
    story = path.story(caller=None)
    if allowed:
        assert (await authenticate(exchange, story, path.deps)).networks == networks
        return
    fault = await fault_of(authenticate(exchange, story, path.deps))
    assert fault.kind is Kind.NOT_PERMITTED
    assert (client or "without an address") in fault.message
    assert "203.0.113.0" not in fault.message, "the list is not told"
    assert story.asked.caller is not None, "the record says whose key it was"
