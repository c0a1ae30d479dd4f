"""The two tables of endpoints agree, and each row says something that can be asked."""

import json

import pytest

from domain.ask import PROMPT_FIELDS, Endpoint
from gateway.http.openai import interpret
from gateway.http.openai.endpoints import FORMS


def test_every_endpoint_has_a_form_and_every_form_an_endpoint() -> None:
    assert FORMS.keys() == set(Endpoint)


def test_paths_and_words_name_one_endpoint_each() -> None:
    assert [Endpoint(endpoint.path) for endpoint in Endpoint] == list(Endpoint)
    assert len({endpoint.word for endpoint in Endpoint}) == len(Endpoint)
    assert {"messages", "prompt", "input"} <= PROMPT_FIELDS


@pytest.mark.parametrize("endpoint", Endpoint)
def test_the_smallest_request_is_one_that_callers_may_send_too(endpoint: Endpoint) -> None:
    ask = interpret(endpoint, json.dumps({"model": "m", **json.loads(endpoint.probe)}).encode())
    assert bool(ask.choices) == bool(ask.sequences) == endpoint.generates
    assert json.loads(ask.prompt) == json.loads(endpoint.probe)[endpoint.prompt_fields[0]]


@pytest.mark.parametrize("endpoint", Endpoint)
def test_prompts_are_listed_where_no_template_makes_them(endpoint: Endpoint) -> None:
    prompts = FORMS[endpoint].prompts
    assert (prompts is None) == endpoint.has_messages
    if prompts is not None:
        assert prompts(json.loads(endpoint.probe))
