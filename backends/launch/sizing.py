"""The sizes of one engine: weights, KV per token, KV capacity and concurrent sequences. Pure.

Per rank (one GPU), with L layers, H KV heads, D head size, b bytes per KV element:

    KV per token and layer   grouped-query attention  2 * max(1, ceil(H / tp)) * D * b          (keys and values; heads are copied
                             latent attention (MLA)   (kv_lora_rank + qk_rope_head_dim) * b      when tp > H, MLA is always copied)
    KV memory                vLLM    memory * gpu-memory-utilization - weights - adapters - reserve
                             SGLang  memory * mem-fraction-static - weights - adapters
    blocks                   KV memory // (block * KV per token and layer * ceil(L / pp))
    capacity                 blocks * block tokens

Sources: vLLM 0.33 `v1/kv_cache_interface.py` (`AttentionSpec.page_size_bytes`, `MLAAttentionSpec`), `v1/core/kv_cache_utils.py`
(`get_num_blocks`), `v1/worker/gpu_worker.py` (`determine_available_memory`); SGLang 0.5.23
`mem_cache/kv_cache_configurator.py`. The memory that vLLM measures while it starts (activations, CUDA graphs) is `reserve` here, an
assumption; everything else follows from the model and the flags.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final

import msgspec
from pydantic import JsonValue

from backends.launch.config import EngineName
from backends.launch.model_shape import ModelShape, SizingError
from backends.launch.resolve import Launch

GIB: Final = 1024**3

KV_BYTES: Final = {"bf16": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "nvfp4": 0.5625}
"""Bytes per KV element; nvfp4 carries an 8-bit scale per 16 values."""

QUANTIZED_BITS: Final = {"fp8": 8.0, "mxfp8": 8.25}
"""Bits per linear weight when the engine quantises while it loads the model."""


class GpuLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is laid out over its GPUs. Memory is per GPU."""

    engine: EngineName = "vllm"
    memory_bytes: int
    share: float = 0.92
    """Share of the memory for the engine (vLLM) or for weights and KV alone (SGLang)."""
    reserve_bytes: int = 0
    kv_bytes: int | None = None
    """KV memory where it is set directly; memory, share and reserve are ignored then."""
    blocks: int | None = None
    """KV blocks where they are set directly; all memory sizes are ignored then."""
    tp: int = 1
    """Ranks that one attention layer is split over."""
    pp: int = 1
    expert_ranks: int = 1
    """Ranks that experts are distributed over; 1: each expert is split like any other layer."""
    block: int = 16
    """Tokens of a KV block or page."""
    kv_element_bytes: float | None = None
    """None: the model's."""
    linear_bits: float | None = None
    """None: the checkpoint's."""
    max_sequences: int | None = None
    lora_slots: int = 0
    lora_rank: int = 0


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The computed sizes. Bytes are per rank unless the name says otherwise."""

    parameters: int
    weights_total_bytes: int
    weights_bytes: int
    """Weights of the fullest rank."""
    lora_bytes: int
    kv_token_bytes: int
    """KV per token, all layers of this rank."""
    kv_bytes: int
    """KV memory."""
    blocks: int
    capacity_tokens: int
    context: int
    sequences: int
    """Concurrent sequences of `context` tokens that fit into memory; fewer run when the engine's own limit is lower."""
    max_sequences: int | None
    notes: tuple[str, ...]


def plan_of(launch: Launch, memory_bytes: int | None = None) -> GpuLayout:
    """The plan that a launch configuration describes; `memory_bytes` replaces its own GPU's memory."""
    flags = launch.flags
    config = launch.config
    vllm = launch.engine == "vllm"
    dp = _number(flags, "data-parallel-size" if vllm else "dp-size", 1)
    tp = _number(flags, "tensor-parallel-size" if vllm else "tp-size", 1)
    # SGLang takes its data-parallel attention ranks from the tensor-parallel ranks, vLLM adds ranks
    attention = tp if vllm or flags.get("enable-dp-attention") is not True else max(1, tp // dp)
    experts = tp * dp if flags.get("enable-expert-parallel") is True else 1
    kv = str(flags.get("kv-cache-dtype", "auto"))
    quantized = str(flags.get("quantization", ""))
    memory = config.hardware.gpu_memory_gib
    if memory_bytes is None and memory is None and config.sizing.kv_gib is None and "max-total-tokens" not in flags:
        raise SizingError(f"{config.name} names no GPU; say --memory-gib")
    return GpuLayout(
        engine=launch.engine,
        memory_bytes=memory_bytes if memory_bytes is not None else int((memory or 0) * GIB),
        share=float(str(flags.get("gpu-memory-utilization" if vllm else "mem-fraction-static", 0.92 if vllm else 0.88))),
        reserve_bytes=int(config.sizing.reserve_gib * GIB),
        kv_bytes=None if config.sizing.kv_gib is None or memory_bytes is not None else int(config.sizing.kv_gib * GIB),
        blocks=_blocks(flags, vllm=vllm),
        tp=attention,
        pp=_number(flags, "pipeline-parallel-size" if vllm else "pp-size", 1),
        expert_ranks=experts if vllm else _number(flags, "ep-size", 1),
        block=_number(flags, "block-size" if vllm else "page-size", 16 if vllm else 1),
        kv_element_bytes=KV_BYTES.get(kv),
        linear_bits=QUANTIZED_BITS.get(quantized),
        max_sequences=_number(flags, "max-num-seqs" if vllm else "max-running-requests", 0) or None,
        lora_slots=_number(flags, "max-loras" if vllm else "max-loras-per-batch", 1 if vllm else 8)
        if flags.get("enable-lora") is True
        else 0,
        lora_rank=_number(flags, "max-lora-rank", 16),
    )


def size(shape: ModelShape, plan: GpuLayout, context: int, *, weights_total_bytes: int | None = None) -> Sizes:
    """The sizes of a model under a plan.

    Args:
        context: tokens of a sequence, prompt and answer.
        weights_total_bytes: size of the checkpoint's files, where known; scales the computed weights.

    Raises:
        SizingError: the weights leave no room for KV, or a number is out of its range.
    """
    if context < 1 or min(plan.tp, plan.pp, plan.block, plan.expert_ranks) < 1 or not 0 < plan.share <= 1:
        raise SizingError("context, ranks and block are at least 1, and the share of memory lies between 0 and 1")
    total = _weights(shape, plan, whole=True)
    scale = 1.0 if weights_total_bytes is None else weights_total_bytes / total
    weights = int(_weights(shape, plan, whole=False) * scale)
    lora = _lora(shape, plan)
    per_layer = _kv_layer_bytes(shape, plan)
    layers = ceil(shape.layers / plan.pp)
    available = plan.kv_bytes
    if plan.blocks is not None:
        available = int(plan.blocks * plan.block * per_layer * layers)
    elif available is None:
        reserve = plan.reserve_bytes if plan.engine == "vllm" else 0
        available = int(plan.memory_bytes * plan.share) - weights - lora - reserve
    if available <= 0:
        raise SizingError(
            f"weights ({weights / GIB:.1f} GiB a rank) leave no room for KV in {plan.memory_bytes * plan.share / GIB:.1f} GiB; "
            "more ranks, fewer bits, or a larger GPU"
        )
    blocks = int(available // (plan.block * per_layer * layers))
    notes = list(shape.notes)
    if plan.lora_slots:
        notes.append(f"{plan.lora_slots} adapter slots of rank {plan.lora_rank} on every linear layer of attention and MLP")
    sequences = int(available // _sequence_bytes(shape, plan, per_layer, context))
    if plan.max_sequences is not None and sequences > plan.max_sequences:
        notes.append(f"memory holds {sequences} sequences, the engine runs {plan.max_sequences} at once")
    return Sizes(
        parameters=shape.parameters,
        weights_total_bytes=int(total) if weights_total_bytes is None else weights_total_bytes,
        weights_bytes=weights,
        lora_bytes=lora,
        kv_token_bytes=int(per_layer * layers),
        kv_bytes=available,
        blocks=blocks,
        capacity_tokens=blocks * plan.block,
        context=context,
        sequences=sequences,
        max_sequences=plan.max_sequences,
        notes=tuple(notes),
    )


def _kv_layer_bytes(shape: ModelShape, plan: GpuLayout) -> float:
    element = plan.kv_element_bytes if plan.kv_element_bytes is not None else shape.dtype_bytes
    if shape.latent is not None:
        return (shape.latent.kv_rank + shape.latent.rope_dim) * element
    return 2 * max(1, ceil(shape.kv_heads / plan.tp)) * shape.head_dim * element


def _sequence_bytes(shape: ModelShape, plan: GpuLayout, per_layer: float, context: int) -> float:
    """KV of one sequence, in whole blocks; a layer with a window keeps the window and the block that it moves into."""
    full = ceil(context / plan.block) * plan.block
    windowed = 0 if shape.window is None else min(full, (ceil(shape.window / plan.block) + 1) * plan.block)
    return (ceil(shape.full_layers / plan.pp) * full + ceil(shape.window_layers / plan.pp) * windowed) * per_layer


def _weights(shape: ModelShape, plan: GpuLayout, *, whole: bool) -> float:
    """Bytes of all weights, or of the fullest rank's.

    Linear layers have the plan's or the checkpoint's bits; embedding, output layer, router and norms stay 16 bits.
    """
    tp, pp, ranks = (1, 1, 1) if whole else (plan.tp, plan.pp, plan.expert_ranks)
    linear = (plan.linear_bits if plan.linear_bits is not None else shape.linear_bits) / 8
    dense = shape.layers - shape.sparse_layers
    kv_copies = max(1.0, tp / shape.kv_heads) if shape.latent is None else 1.0
    attention = shape.attention_parameters / tp
    if shape.latent is None:
        attention += 2 * shape.hidden * shape.head_dim * shape.kv_heads * (kv_copies - 1) / tp
    expert_split = ranks if ranks > 1 else tp
    mlps = dense * 3 * shape.hidden * shape.mlp / tp
    mlps += shape.sparse_layers * (shape.experts * shape.expert_parameters / expert_split + 3 * shape.hidden * shape.shared_mlp / tp)
    unquantized = 2 * shape.hidden * shape.layers + shape.sparse_layers * shape.hidden * shape.experts
    ends = shape.embedding_parameters / tp * (1 if shape.tied or pp > 1 else 2)
    per_stage = ceil(shape.layers / pp) / shape.layers
    return ((shape.layers * attention + mlps) * linear + unquantized * shape.dtype_bytes) * per_stage + ends * shape.dtype_bytes


def _lora(shape: ModelShape, plan: GpuLayout) -> int:
    """Memory set aside for adapters: A (rank x in) and B (out x rank) of each linear layer and slot, 16 bits.

    vLLM 0.33 `lora/layers/column_parallel_linear.py`: A is copied to every rank, B is split.
    """
    if not plan.lora_slots or shape.latent is not None or shape.experts:
        return 0
    q, kv, h, m = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden, shape.mlp
    columns = 3 * h + (q + 2 * kv) / plan.tp + 2 * h + 2 * m / plan.tp  # q, k, v, gate, up
    rows = q / plan.tp + h + m / plan.tp + h  # o, down
    return int(plan.lora_slots * plan.lora_rank * (columns + rows) * 2 * ceil(shape.layers / plan.pp))


def _blocks(flags: Mapping[str, JsonValue], *, vllm: bool) -> int | None:
    if vllm:
        return _number(flags, "num-gpu-blocks-override", 0) or None
    return _number(flags, "max-total-tokens", 0) // _number(flags, "page-size", 1) or None


def _number(flags: Mapping[str, JsonValue], name: str, default: int) -> int:
    return int(str(flags.get(name, default)))
