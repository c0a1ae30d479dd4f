from typing import Any

import pytest

from backends.launch.catalogue import load
from backends.launch.model_shape import SizingError, read_shape

DENSE: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
DEEPSEEK_V3: dict[str, Any] = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
}


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (DENSE, 8_030_261_248),  # Llama-3.1-8B
        (load("vllm-70b-tp4").sizing.model, 70_553_706_496),  # Llama-3.3-70B
        ({**DENSE, "vocab_size": 32000, "num_local_experts": 8}, 46_702_792_704),  # Mixtral-8x7B
        (load("vllm-moe-ep").sizing.model, 235_093_634_560),  # Qwen3-235B-A22B
        (DEEPSEEK_V3, 671_026_419_200),  # DeepSeek-V3 without the prediction layer
        (load("vllm-embeddings").sizing.model, 595_776_512),  # Qwen3-Embedding-0.6B
    ],
)
def test_parameters_are_those_that_were_published(config: dict[str, Any], published: int) -> None:
    """Up to vectors nobody counts in memory: norms of heads, biases of routers."""
    assert read_shape(config).parameters == pytest.approx(published, rel=2e-5)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (None, 16),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.125),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}, 4.5),
        ({"quant_method": "mxfp4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
    ],
)
def test_bits_of_a_weight(quantization: dict[str, Any] | None, bits: float) -> None:
    assert read_shape({**DENSE, "quantization_config": quantization}).linear_bits == bits


def test_windows() -> None:
    assert read_shape({**DENSE, "sliding_window": 4096}).window_layers == 32
    assert read_shape({**DENSE, "sliding_window": 4096, "use_sliding_window": False}).window_layers == 0
    assert read_shape({**DENSE, "sliding_window": 1024, "sliding_window_pattern": 6}).full_layers == 5
    kinds = ["sliding_attention", "full_attention"] * 16
    shape = read_shape({**DENSE, "sliding_window": 128, "layer_types": kinds})
    assert (shape.window, shape.window_layers) == (128, 16)
    assert "16 of 32 layers look back 128 tokens only" in shape.notes[0]


def test_the_text_model_inside_another_is_found() -> None:
    shape = read_shape({"text_config": DENSE, "torch_dtype": "float32"})
    assert (shape.layers, shape.dtype_bytes) == (32, 2)
    assert "encoders" in shape.notes[0]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "says no num_hidden_layers"),
        ({**DENSE, "hidden_size": "big"}, "says no hidden_size"),
        ({**DENSE, "layer_types": ["linear_attention", "full_attention"]}, "recurrent state"),
        ({**DENSE, "mamba_d_state": 16}, "recurrent state"),
        ({**DENSE, "torch_dtype": "int3"}, "dtype 'int3' is not known"),
        ({**DENSE, "quantization_config": {"quant_method": "secret"}}, "method 'secret' says no number of bits"),
    ],
)
def test_what_cannot_be_computed_is_said(config: dict[str, Any], says: str) -> None:
    with pytest.raises(SizingError, match=says):
        read_shape(config)
