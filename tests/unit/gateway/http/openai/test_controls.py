"""Fields that steer engines: the list the threat model names is in it, and nothing a caller legitimately sets."""

from pathlib import Path

from gateway.http.openai.chat import CHAT
from gateway.http.openai.completions import COMPLETIONS
from gateway.http.openai.controls import CONTROLS, without_controls
from gateway.http.openai.embeddings import EMBEDDINGS
from gateway.http.openai.generation import REFUSED

API_PAGE = (Path(__file__).parents[5] / "docs" / "reference" / "api.md").read_text("utf-8")


def test_the_trust_boundary_is_covered() -> None:
    named = {"priority", "cache_salt", "extra_key", "kv_transfer_params", "ec_transfer_params", "routed_dp_rank", "vllm_xargs", "rid"}
    named |= {"bootstrap_host", "bootstrap_port", "bootstrap_room", "session_params", "lora_path", "request_id", "data_parallel_rank"}
    assert named <= CONTROLS


def test_no_field_is_both_stripped_and_checked() -> None:
    assert CONTROLS.isdisjoint({*CHAT, *COMPLETIONS, *EMBEDDINGS, "model", "stream_options"})


def test_stripping() -> None:
    clean: dict[str, object] = {"a": 1}
    assert without_controls(clean) == clean
    assert without_controls({"priority": 1, "a": 1, "rid": "x"}) == {"a": 1}


def test_every_stripped_or_refused_field_is_documented() -> None:
    missing = {name for name in CONTROLS | REFUSED.keys() if f"`{name}`" not in API_PAGE}
    assert not missing
