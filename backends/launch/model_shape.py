"""The size of a model, from the members of its `config.json`: parameters by kind, and the dimensions of its KV per token. Pure.

Counts are those of the released checkpoints (tests compare them with published totals). Decoder-only transformers with grouped-query or
latent (MLA) attention are supported, dense or with experts; a model whose layers keep a recurrent state is refused, because its memory does
not grow with tokens.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from pydantic import JsonValue

Config = Mapping[str, JsonValue]

DTYPE_BYTES: Final = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


class SizingError(Exception):
    """The model's configuration lacks a member or is of an unknown kind, or a plan does not fit; the text says which."""


class Latent(msgspec.Struct, frozen=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1): one compressed vector per token and layer."""

    kv_rank: int
    rope_dim: int
    q_rank: int | None
    nope_dim: int
    value_dim: int


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of a model that decide its sizes. Counts unless a unit is in the name."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the output layer shares the embedding's weights."""
    mlp: int
    """Inner size of a dense layer's MLP."""
    sparse_layers: int = 0
    experts: int = 0
    expert_mlp: int = 0
    shared_mlp: int = 0
    """Inner size of all shared experts of a layer together."""
    latent: Latent | None = None
    window: int | None = None
    """Tokens that a sliding-window layer looks back."""
    window_layers: int = 0
    dtype_bytes: int = 2
    linear_bits: float = 16.0
    """Bits per weight of linear layers, scales included."""
    notes: tuple[str, ...] = ()

    @property
    def full_layers(self) -> int:
        """Layers whose KV grows with every token."""
        return self.layers - self.window_layers

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections (biases, a thousandth, are left out)."""
        if self.latent is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        latent = self.latent
        query = self.heads * (latent.nope_dim + latent.rope_dim)
        q = self.hidden * query if latent.q_rank is None else self.hidden * latent.q_rank + latent.q_rank * query + latent.q_rank
        down = self.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return q + down + up + self.heads * latent.value_dim * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert: gate, up and down."""
        return 3 * self.hidden * self.expert_mlp

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding; the output layer has the same number again unless it is tied."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, norms included."""
        dense = self.layers - self.sparse_layers
        router = self.hidden * self.experts
        sparse = self.experts * self.expert_parameters + 3 * self.hidden * self.shared_mlp + router
        layers = self.layers * (self.attention_parameters + 2 * self.hidden)
        mlps = dense * 3 * self.hidden * self.mlp + self.sparse_layers * sparse
        return layers + mlps + self.embedding_parameters * (1 if self.tied else 2) + self.hidden


def read_shape(config: Config) -> ModelShape:
    """The shape in a parsed `config.json`. Raises SizingError."""
    notes = []
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {**{key: config[key] for key in ("torch_dtype", "dtype", "quantization_config") if key in config}, **text}
        notes.append("the text model alone: encoders of images or sound come on top")
    layers, heads, hidden = (_count(config, name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    _refuse_recurrent(config)
    window, window_layers = _window(config, layers)
    if window_layers:
        notes.append(f"{window_layers} of {layers} layers look back {window} tokens only: their KV stops growing there")
    latent = _latent(config)
    if latent is not None:
        notes.append("latent attention (MLA): the KV of a token is one vector, and every tensor-parallel rank keeps all of it")
    experts = _count(config, "num_experts", "n_routed_experts", "num_local_experts", default=0)
    sparse_layers = _sparse_layers(config, layers) if experts else 0
    expert_mlp = _count(config, "moe_intermediate_size", "intermediate_size") if experts else 0
    shared = _count(config, "shared_expert_intermediate_size", default=0) or _count(config, "n_shared_experts", default=0) * expert_mlp
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", "num_attention_heads"),
        head_dim=_count(config, "head_dim", default=hidden // heads),
        vocab=_count(config, "vocab_size"),
        tied=config.get("tie_word_embeddings") is True,
        mlp=_count(config, "intermediate_size"),
        sparse_layers=sparse_layers,
        experts=experts,
        expert_mlp=expert_mlp,
        shared_mlp=shared,
        latent=latent,
        window=window if window_layers else None,
        window_layers=window_layers,
        dtype_bytes=_dtype_bytes(config),
        linear_bits=_linear_bits(config),
        notes=tuple(notes),
    )


def _count(config: Config, *names: str, default: int | None = None) -> int:
    """The first of these members that holds a number, else the default. Raises SizingError without either."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**40 and (value or default is not None):
            return value
    if default is None:
        raise SizingError(f"config.json says no {' or '.join(names)}; is it a decoder's?")
    return default


def _refuse_recurrent(config: Config) -> None:
    kinds = config.get("layer_types")
    recurrent = [kind for kind in kinds if "attention" not in str(kind) or "linear" in str(kind)] if isinstance(kinds, list) else []
    if recurrent or any(str(key).startswith(("mamba_", "ssm_")) for key in config):
        raise SizingError("some layers keep a recurrent state instead of KV; read the engine's own report of its capacity")


def _window(config: Config, layers: int) -> tuple[int, int]:
    """The sliding window and how many layers have one; (0, 0) when none has."""
    window = config.get("sliding_window")
    if not isinstance(window, int) or window <= 0 or config.get("use_sliding_window") is False:
        return 0, 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return window, sum(kind == "sliding_attention" for kind in kinds)
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:  # Gemma 3: every pattern-th layer sees everything
        return window, layers - layers // pattern
    return window, layers


def _latent(config: Config) -> Latent | None:
    if not isinstance(config.get("kv_lora_rank"), int):
        return None
    return Latent(
        kv_rank=_count(config, "kv_lora_rank"),
        rope_dim=_count(config, "qk_rope_head_dim"),
        q_rank=_count(config, "q_lora_rank", default=0) or None,
        nope_dim=_count(config, "qk_nope_head_dim"),
        value_dim=_count(config, "v_head_dim"),
    )


def _sparse_layers(config: Config, layers: int) -> int:
    """The number of layers with experts: every `step`-th after the first dense ones, without those listed as dense."""
    dense_first = _count(config, "first_k_dense_replace", default=0)
    step = _count(config, "decoder_sparse_step", "moe_layer_freq", default=1) or 1
    named = config.get("mlp_only_layers")
    dense = set(named) if isinstance(named, list) else set()
    return sum(layer >= dense_first and layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _dtype_bytes(config: Config) -> int:
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise SizingError(f"dtype {name!r} is not known; known: {', '.join(DTYPE_BYTES)}")
    # both engines run float32 checkpoints in 16 bits by default
    return min(DTYPE_BYTES[name], 2)


def _linear_bits(config: Config) -> float:
    """Bits per weight of linear layers. Group-quantised weights carry a 16-bit scale per group."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return _dtype_bytes(config) * 8.0
    method = str(quantization.get("quant_method", "")).lower()
    groups = quantization.get("config_groups")
    weights: JsonValue = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = weights.get("weights") if isinstance(weights, dict) else None
    source = weights if isinstance(weights, dict) else quantization
    bits = source.get("num_bits", source.get("bits", source.get("w_bit")))
    if not isinstance(bits, int) or isinstance(bits, bool):
        algorithm = f"{method} {quantization.get('quant_algo', '')}".lower()
        four = "fp4" in algorithm or quantization.get("load_in_4bit") is True
        eight = "fp8" in algorithm or "8bit" in algorithm
        bits = 4 if four else 8 if eight else None
    if bits is None:
        raise SizingError(f"quantization_config of method {method!r} says no number of bits")
    group = source.get("group_size")
    if not isinstance(group, int) or group <= 0:
        group = 32 if bits == 4 else 0
    return bits + (16 / group if group and bits < 8 else 0.0)
