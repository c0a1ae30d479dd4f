"""What two engines that share a request are told: the caller's request, what is ours, and nothing between."""

import json

import msgspec
import pytest

from backends.dialects import DIALECTS, body_for
from backends.dialects.handover import MAX_PARAMS_BYTES
from gateway.http.openai.controls import CONTROLS, FAMILIES

FIELDS = (
    b'{"messages":[{"role":"user","content":"x \\u00e9"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":90,"seed":7}'
)
ROOM = ("10.0.0.1", 8998, 2**53 - 1)
PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_engine_id": "e", "tp_size": 1}

NIXL, BOOTSTRAP = DIALECTS["vllm"].disaggregation, DIALECTS["sglang"].disaggregation
assert NIXL is not None
assert BOOTSTRAP is not None


def body(fields: bytes = FIELDS) -> bytes:
    return body_for(DIALECTS["vllm"], fields, "m", cache_salt="salt")


def test_who_can_share_a_request() -> None:
    assert {name for name, dialect in DIALECTS.items() if dialect.disaggregation is not None} == {"vllm", "sglang"}


def test_nixl_computes_a_prompt_for_one_token_and_keeps_it() -> None:
    sent, whole = json.loads(NIXL.prefill_body(body(), None)), json.loads(body())
    assert sent.pop("kv_transfer_params") == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert (sent.pop("max_tokens"), sent.pop("stream")) == (1, False)
    assert sent == {name: whole[name] for name in ("model", "cache_salt", "messages", "seed")}


def test_nixl_lowers_every_cap_on_output_that_is_there() -> None:
    sent = json.loads(NIXL.prefill_body(body(b'{"messages":[],"max_completion_tokens":90,"min_tokens":5}'), None))
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (1, 1)
    assert "min_tokens" not in sent
    assert "max_completion_tokens" not in json.loads(NIXL.prefill_body(body(), None))


def test_nixl_generates_from_what_the_first_reply_said() -> None:
    params = NIXL.params_of(json.dumps({"choices": [], "kv_transfer_params": PARAMS}).encode())
    sent = json.loads(NIXL.decode_body(body(), params, None))
    assert sent == {"kv_transfer_params": PARAMS, **json.loads(body())}
    assert NIXL.decode_body(body(), params, None).endswith(FIELDS[1:])


@pytest.mark.parametrize("reply", [b'{"choices":[]}', b'{"kv_transfer_params":null}'])
def test_without_kv_the_request_goes_on_as_it_is(reply: bytes) -> None:
    assert NIXL.params_of(reply) is None
    assert NIXL.decode_body(body(), None, None) == body()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]",
        b"<html>",
        b'{"kv_transfer_params":5}',
        b'{"kv_transfer_params":[1]}',
        b'{"kv_transfer_params":{"remote_block_ids":"' + b"1" * MAX_PARAMS_BYTES + b'"}}',
        b"\xff",
    ],
)
def test_what_no_engine_says_is_refused(reply: bytes) -> None:
    with pytest.raises(ValueError, match=r"kv_transfer_params|no JSON object"):
        NIXL.params_of(reply)


def test_both_calls_to_sglang_name_the_room() -> None:
    prefill, decode = json.loads(BOOTSTRAP.prefill_body(body(), ROOM)), json.loads(BOOTSTRAP.decode_body(body(), None, ROOM))
    meeting = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 2**53 - 1}
    assert decode == {**meeting, **json.loads(body())}
    assert {name: prefill[name] for name in meeting} == meeting
    assert prefill["stream"] is False
    assert "stream_options" not in prefill
    assert prefill["max_tokens"] == 90


@pytest.mark.req("R29")
def test_what_makes_engines_meet_is_ours_alone() -> None:
    for way in (NIXL, BOOTSTRAP):
        said = set(json.loads(way.prefill_body(body(), ROOM if way.at_once else None))) - set(json.loads(body())) - {*way.prefill}
        said |= set(json.loads(way.decode_body(body(), msgspec.Raw(b'{"a":1}'), ROOM if way.at_once else None))) - set(json.loads(body()))
        assert said
        assert all(name in CONTROLS or name.startswith(FAMILIES) for name in said)
