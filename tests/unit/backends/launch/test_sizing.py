import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.launch.catalogue import load, names
from backends.launch.manifest import manifest_for
from backends.launch.model_shape import ModelShape, SizingError, read_shape
from backends.launch.resolve import Launch, resolve
from backends.launch.sizing import GIB, GpuLayout, plan_of, size

SHAPE = ModelShape(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, vocab=128256, tied=False, mlp=14336)
PLAN = GpuLayout(memory_bytes=80 * GIB)


def launched(name: str) -> Launch:
    config = load(name)
    return resolve(config, manifest_for(config.engine, config.version))


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads", "head_dim", "block", "blocks"),
    [(2, 4, 2, 32, 32, 65_536), (2, 4, 2, 32, 64, 32_768), (5, 3, 3, 64, 64, 4_369), (7, 4, 1, 128, 96, 3_120)],
)
def test_blocks_are_those_that_vllm_0_32_reported_for_one_gib(
    layers: int, heads: int, kv_heads: int, head_dim: int, block: int, blocks: int
) -> None:
    """Figures of `python -m bench.launch.sizes`, docs/numbers.md."""
    shape = ModelShape(
        layers=layers, hidden=heads * head_dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim, vocab=2048, tied=False, mlp=256
    )
    assert size(shape, GpuLayout(memory_bytes=0, kv_bytes=GIB, block=block), 2048).blocks == blocks


def test_the_formula_on_a_known_model() -> None:
    """Llama-3.1-8B: 2 x 8 heads x 128 x 2 bytes x 32 layers = 128 KiB a token."""
    found = size(SHAPE, PLAN, 4096)
    assert found.kv_token_bytes == 128 * 1024
    assert found.weights_bytes == pytest.approx(8_030_261_248 * 2)
    assert found.kv_bytes == int(80 * GIB * 0.92) - found.weights_bytes
    assert found.capacity_tokens == found.kv_bytes // (16 * 128 * 1024) * 16
    assert found.sequences == found.kv_bytes // (4096 * 128 * 1024)


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), context=st.integers(1, 200_000), block=st.sampled_from([1, 16, 64]))
def test_more_ranks_never_hold_less_and_all_sequences_fit(tp: int, context: int, block: int) -> None:
    one, two = (size(SHAPE, msgspec.structs.replace(PLAN, tp=ranks, block=block), context) for ranks in (tp, 2 * tp))
    assert two.weights_bytes <= one.weights_bytes
    assert two.kv_token_bytes <= one.kv_token_bytes
    assert two.capacity_tokens >= one.capacity_tokens
    assert one.sequences * context <= one.capacity_tokens + block


def test_heads_are_copied_beyond_their_number_and_latent_kv_always() -> None:
    eight, sixteen = (size(SHAPE, msgspec.structs.replace(PLAN, tp=tp), 1).kv_token_bytes for tp in (8, 16))
    assert eight == sixteen == 2 * 128 * 2 * 32
    latent = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    config = {"hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 10, "num_attention_heads": 16, "vocab_size": 1000}
    shape = read_shape({**config, **latent})
    for tp in (1, 8):
        assert size(shape, msgspec.structs.replace(PLAN, tp=tp), 1).kv_token_bytes == (512 + 64) * 2 * 10


def test_stages_split_layers() -> None:
    found = size(SHAPE, msgspec.structs.replace(PLAN, pp=4), 4096)
    assert found.kv_token_bytes == 32 * 1024
    assert found.weights_bytes < size(SHAPE, PLAN, 4096).weights_bytes / 3


def test_a_window_stops_growing() -> None:
    windowed = msgspec.structs.replace(SHAPE, window=1024, window_layers=16)
    full, half = size(SHAPE, PLAN, 100_000), size(windowed, PLAN, 100_000)
    assert full.sequences < half.sequences <= 2 * full.sequences + 1
    assert size(windowed, PLAN, 1024).sequences == size(SHAPE, PLAN, 1024).sequences


def test_files_on_disk_outrank_the_computed_weights() -> None:
    found = size(SHAPE, msgspec.structs.replace(PLAN, tp=2), 4096, weights_total_bytes=20 * GIB)
    assert found.weights_total_bytes == 20 * GIB
    assert found.weights_bytes == pytest.approx(10 * GIB, rel=0.01)


@pytest.mark.parametrize("name", names())
def test_every_configuration_fits_its_own_gpu(name: str) -> None:
    launch = launched(name)
    found = size(read_shape(launch.config.sizing.model), plan_of(launch), launch.config.sizing.context)
    assert found.sequences >= 1
    assert found.capacity_tokens >= launch.config.sizing.context
    if launch.config.hardware.gpus:
        assert found.weights_bytes + found.kv_bytes <= 80 * GIB


def test_what_a_configuration_says_is_what_is_computed_with() -> None:
    moe, both = plan_of(launched("vllm-moe-ep")), plan_of(launched("sglang-moe-ep"))
    assert (moe.tp, moe.expert_ranks) == (both.tp, both.expert_ranks) == (1, 8)
    assert plan_of(launched("vllm-70b-tp4")).tp == 4
    assert plan_of(launched("vllm-8b")).linear_bits == 8
    lora = size(SHAPE, plan_of(launched("vllm-multi-lora")), 4096)
    # 8 slots x rank 64 x (in + out of q, k, v, o, gate, up, down) x 2 bytes x 32 layers
    widths = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert lora.lora_bytes == 8 * 64 * widths * 2 * 32
    assert size(SHAPE, plan_of(launched("sglang-cpu-test")), 2048).capacity_tokens == 16_384


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(SizingError, match="leave no room for KV"):
        size(SHAPE, GpuLayout(memory_bytes=8 * GIB), 1)
    with pytest.raises(SizingError, match="at least 1"):
        size(SHAPE, PLAN, 0)
