"""The model list in OpenAI's shape."""

import json

from gateway.http.openai.models import render_model, render_models

ONE = {"id": "a", "object": "model", "created": 7, "owned_by": "tidegate"}


def test_the_list_keeps_its_order() -> None:
    assert json.loads(render_models(["b", "a"], 7)) == {"object": "list", "data": [{**ONE, "id": "b"}, ONE]}
    assert json.loads(render_models([], 7)) == {"object": "list", "data": []}


def test_one_model() -> None:
    assert json.loads(render_model("a", 7)) == ONE
