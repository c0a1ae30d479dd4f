import pytest

from backends.model_list import read_model_list

VLLM = b"""{"object":"list","data":[{"id":"tiny","object":"model","root":"tiny-llama","parent":null,"max_model_len":2048},
{"id":"alias-tiny","object":"model","parent":null},{"id":"lora-a","object":"model","root":"/adapters/a","parent":"tiny"}]}"""


def test_what_has_a_parent_is_an_adapter() -> None:
    listed = read_model_list(VLLM)
    assert listed.models == ("tiny", "alias-tiny")
    assert listed.loras == ("lora-a",)
    assert listed.context_tokens == 2048


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ('"meta":{"n_ctx":4096,"n_ctx_train":131072}', 4096),
        ('"max_model_len":"long"', None),
        ('"max_model_len":-1', None),
        ('"max_model_len":1e400', None),
        ('"meta":null', None),
        ('"meta":[1],"max_model_len":12', 12),
    ],
)
def test_an_odd_context_is_not_known_and_the_models_are(fields: str, tokens: int | None) -> None:
    try:
        listed = read_model_list(b'{"data":[{"id":"m",%b}]}' % fields.encode())
    except ValueError:
        assert "e400" in fields, "no number at all: JSON itself is broken"
        return
    assert (listed.models, listed.context_tokens) == (("m",), tokens)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"data":5}', b'{"data":[{"id":"\xff"}]}', b'{"data":' + b"[" * 4000])
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no model list"):
        read_model_list(body)
