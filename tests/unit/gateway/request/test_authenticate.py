"""Laws of the steps around a request: who gets in, what is reserved, and that each hold and each request is closed once."""

from domain.faults import Kind
from gateway.request.authenticate import authenticate
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.request_path import KEY, Engine, Path, caller, fault_of

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
