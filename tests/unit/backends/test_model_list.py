import pytest

from backends.model_list import read_model_list

VLLM = b"""{"object":"list","data":[{"id":"tiny","object":"model","root":"tiny-llama","parent":null,"max_model_len":2048},
{"id":"alias-tiny","object":"model","parent":null},{"id":"lora-a","object":"model","root":"/adapters/a","parent":"tiny"}]}"""


def test_what_has_a_parent_is_an_adapter() -> None:
    listed = read_model_list(VLLM)
    assert listed.models == ("tiny", "alias-tiny")
    assert listed.loras == ("lora-a",)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"data":5}', b'{"data":[{"id":"\xff"}]}', b'{"data":' + b"[" * 4000])
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no model list"):
        read_model_list(body)
