"""No route of the data port passes by the guard rules."""

import json

import msgspec
import pytest

from domain.ask import Endpoint, EndpointFacts
from gateway.guards.coverage import UnguardedRoute, check_guarded
from gateway.http.data_port import DataPort
from guardrails.messages import texts

SPEECH = EndpointFacts(
    path="/v1/speech",
    word="speech",
    prompt_fields=("spoken",),
    has_messages=False,
    generates=False,
    reply_field="results",
    probe=b"{}",
)


@pytest.mark.req("R25")
def test_a_route_that_no_rule_reads_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnguardedRoute, match="'spoken' of /v1/speech"):
        check_guarded([SPEECH])
    spoken = msgspec.structs.replace(SPEECH, prompt_fields=("input",), generates=True, reply_field="audio")
    with pytest.raises(UnguardedRoute, match="'audio' of answers"):
        check_guarded([spoken])
    monkeypatch.setattr("gateway.http.data_port.INFERENCE", {SPEECH.path: SPEECH})
    with pytest.raises(UnguardedRoute):
        DataPort(None)  # type: ignore[arg-type]  # refused before it looks


@pytest.mark.req("R25")
@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_prompt_of_every_endpoint_is_read(endpoint: Endpoint) -> None:
    for fields in (endpoint.prompt_fields, *endpoint.alternatives):
        value = [{"role": "user", "content": "a word"}] if fields == ("messages",) else ["a word"]
        body = json.dumps(dict.fromkeys(fields, value)).encode()
        assert [text.text for text in texts(body).readable] == ["a word"] * len(fields)
