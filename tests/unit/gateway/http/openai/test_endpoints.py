"""The two tables of endpoints agree, and each row says something that can be asked."""

import json

import pytest

from domain.ask import PROMPT_FIELDS, Endpoint
from gateway.http.edge.reply_document import VALUE_BEGINS
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
    assert bool(ask.choices) == bool(ask.sequences) == (endpoint.generates or endpoint.sound == "in" or endpoint.duplex)
    assert json.loads(ask.prompt) == json.loads(endpoint.probe)[endpoint.prompt_fields[0]]


@pytest.mark.parametrize("endpoint", Endpoint)
def test_prompts_are_listed_where_no_template_makes_them(endpoint: Endpoint) -> None:
    prompts = FORMS[endpoint].prompts
    assert (prompts is None) == endpoint.has_messages
    if prompts is not None:
        # of a pair, only the engine knows what text it makes, and of a recording or a session
        unread = len(endpoint.prompt_fields) > 1 or endpoint.sound == "in" or endpoint.duplex
        assert bool(prompts(json.loads(endpoint.probe))) != unread


@pytest.mark.parametrize("endpoint", Endpoint)
def test_items_are_counted_where_nothing_is_generated(endpoint: Endpoint) -> None:
    items = FORMS[endpoint].items
    assert (items is None) == endpoint.generates == (not endpoint.item_fields)
    if items is not None:
        assert items(json.loads(endpoint.probe)) == 1


def test_no_path_leads_to_two_endpoints() -> None:
    paths = [path for endpoint in Endpoint for path in (endpoint.path, *endpoint.aliases)]
    assert len(paths) == len(set(paths))


def test_items_of_replies_have_values_that_are_known() -> None:
    assert {field for endpoint in Endpoint for field in endpoint.item_fields} == VALUE_BEGINS.keys()
