"""No route of the data port passes by the guard rules."""

import json

import msgspec
import pytest

from domain.ask import Endpoint, EndpointFacts
from gateway.guards.coverage import UnguardedRoute, check_guarded
from gateway.http.data_port import DataPort
from guardrails.messages import texts

RERANK = EndpointFacts(
    path="/v1/rerank",
    word="rerank",
    prompt_fields=("query", "documents"),
    has_messages=False,
    generates=False,
    reply_field="results",
    probe=b"{}",
)


@pytest.mark.req("R25")
def test_a_route_that_no_rule_reads_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnguardedRoute, match="'query' of /v1/rerank"):
        check_guarded([RERANK])
    spoken = msgspec.structs.replace(RERANK, prompt_fields=("input",), generates=True, reply_field="audio")
    with pytest.raises(UnguardedRoute, match="'audio' of answers"):
        check_guarded([spoken])
    monkeypatch.setattr("gateway.http.data_port.INFERENCE", {RERANK.path: RERANK})
    with pytest.raises(UnguardedRoute):
        DataPort(None)  # type: ignore[arg-type]  # refused before it looks


@pytest.mark.req("R25")
@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_prompt_of_every_endpoint_is_read(endpoint: Endpoint) -> None:
    value = [{"role": "user", "content": "a word"}] if endpoint.has_messages else ["a word"]
    body = json.dumps(dict.fromkeys(endpoint.prompt_fields, value)).encode()
    assert [text.text for text in texts(body).readable] == ["a word"] * len(endpoint.prompt_fields)
