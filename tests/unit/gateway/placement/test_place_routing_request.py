from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.placement.place import session_named, worth_reading
from policies.routing_choice import routing_of
from tests.placement import pool_of


def ask(endpoint: Endpoint = Endpoint.CHAT, fields: bytes = b'"messages":[{"role":"user","content":"x"}]') -> Ask:
    return interpret(endpoint, b'{"model":"m",%b}' % fields)


def test_a_conversation_is_named_in_a_header_or_else_in_the_body() -> None:
    body = ask(fields=b'"messages":[{"role":"user","content":"x"}],"session_id":"of-body","prompt_cache_key":"key"')
    assert session_named(body, {b"x-session-id": b"of-head"}) == "of-head"
    assert session_named(body, {b"x-session-affinity": b"other"}) == "other"
    assert session_named(body, {b"x-session-id": b"x" * 257}) == "of-body"
    assert session_named(ask(fields=b'"messages":[{"role":"user","content":"x"}],"prompt_cache_key":"key"'), {}) == "key"
    assert session_named(ask(fields=b'"messages":[{"role":"user","content":"x"}],"session_id":7'), {}) == ""
    assert b"of-body" not in body.fields


def test_a_prompt_is_read_only_where_its_placing_can_depend_on_it() -> None:
    two, one = pool_of("a", "b"), pool_of("a")
    latency = routing_of("predicted_latency")
    assert worth_reading(ask(), two, latency)
    assert not worth_reading(ask(), one, latency)
    assert not worth_reading(ask(), two, routing_of("round_robin"))
    assert not worth_reading(ask(Endpoint.EMBEDDINGS, b'"input":"x"'), two, latency)
