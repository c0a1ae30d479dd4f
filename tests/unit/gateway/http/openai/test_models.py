"""The model list in OpenAI's shape, with what other clients read of it."""

import json

import pytest

from gateway.http.openai.models import Abilities, ModelFacts, render_model, render_models
from tenancy.prices import ANY_REVISION, Price, TokenRates

TEXT = {"input_modalities": ["text"], "output_modalities": ["text"]}
ONE = {"id": "a", "object": "model", "created": 7, "owned_by": "tidegate", "type": "chat", "architecture": TEXT}


def test_the_list_keeps_its_order_and_says_nothing_that_is_not_known() -> None:
    facts = [ModelFacts("b"), ModelFacts("a")]
    assert json.loads(render_models(facts, 7)) == {"object": "list", "data": [{**ONE, "id": "b"}, ONE]}
    assert json.loads(render_models([], 7)) == {"object": "list", "data": []}
    assert json.loads(render_model(ModelFacts("a"), 7)) == ONE


@pytest.mark.parametrize(("kind", "output"), [("embedding", "embeddings"), ("rerank", "scores"), ("chat", "text")])
def test_what_is_known_is_told(kind: str, output: str) -> None:
    price = Price("p", "a", ANY_REVISION, 0.0, TokenRates(200_000_000, 50_000_000, 6_000_000_000, 1))
    told = json.loads(render_model(ModelFacts("a", Abilities(kind, ("text", "image")), 32_768, price), 7))
    assert (told["type"], told["max_model_len"], told["context_length"]) == (kind, 32_768, 32_768)
    assert told["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": [output]}
    assert told["pricing"] == {
        "prompt": "0.0000002",
        "completion": "0.000006",
        "input_cache_read": "0.00000005",
        "internal_reasoning": "0.000000000000001",
    }
    assert told["owned_by"] == "tidegate"
