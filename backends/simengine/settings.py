"""The settings of a simulated engine (`SimSettings`), the timing of its steps (`Timing`), and the constants of real machines (`PRESETS`).

    step_ms = c0 + c1 * prefill_tokens + c1a * sum(chunk * context) + c2 * decoding_seqs + c3 * kv_tokens_read

Source of the form: iteration-level models of vLLM V1, fitted within 2 % of mean TTFT and makespan to public runs of vLLM
0.19 on two GPUs. The H100 constants are derived from kernel timings and bandwidth, not fitted to an H100 run; check every claim also with
`c1` times 0.6 and times 1.6.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from backends.simengine.faults import FaultRule
from domain.membership import Role


class Timing(msgspec.Struct, frozen=True):
    """Constants of one model on one machine; milliseconds, and tokens for the capacity."""

    c0: float
    """Fixed cost of a step: weights over memory bandwidth, launches."""
    c1: float
    """Per prefill token."""
    c1a: float
    """Per prefill token and token of context before it (attention)."""
    c2: float
    """Per decoding sequence."""
    c3: float
    """Per KV token read by decoding sequences."""
    kv_tokens: int
    """KV cache capacity."""

    def step_ms(self, prefill: list[tuple[int, int]], decoding: int, kv_read: int) -> float:
        """Duration of one step. `prefill`: (chunk, context) in tokens for each sequence that prefills in it."""
        tokens = sum(chunk for chunk, _ in prefill)
        attention = sum(chunk * context for chunk, context in prefill)
        return self.c0 + self.c1 * tokens + self.c1a * attention + self.c2 * decoding + self.c3 * kv_read


PRESETS: Final[Mapping[str, Timing]] = {
    # Llama-3.1-8B on one H100: 40k tokens/s of prefill, 6.5 ms per decode step at batch 1
    "h100-8b": Timing(c0=6.5, c1=0.025, c1a=8e-7, c2=0.02, c3=5e-5, kv_tokens=440_000),
    # Llama-3.1-70B on four H100 with tensor parallelism: 14k tokens/s, 18 ms
    "h100-70b-tp4": Timing(c0=18.0, c1=0.070, c1a=1e-6, c2=0.03, c3=3e-5, kv_tokens=450_000),
}


DIALECTS: Final = ("vllm", "sglang")


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one engine. Raises ValueError for contradictory or impossible values."""

    models: tuple[str, ...] = ("tide-sim-8b",)
    """Names it serves; the first one is the metrics' label."""
    dialect: str = "vllm"
    preset: str = "h100-8b"
    speed: float = 1.0
    """Divides every time: 10 is ten times faster than the machine of the preset."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free one."""
    block_size: int = 16
    """Tokens per KV block."""
    kv_tokens: int | None = None
    """KV capacity; None takes the preset's."""
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    max_model_len: int = 131_072
    max_queued: int | None = None
    """Requests waiting or running beyond which it answers 503; None for no limit."""
    max_loras: int = 0
    """Adapters it holds at once; with 0 the routes to load them do not exist."""
    loras: tuple[str, ...] = ()
    """Adapters it is started with."""
    lora_load_s: float = 0.0
    """How long a load takes, before `speed`."""
    api_key: str | None = None
    instant: bool = False
    """Answer at once with a fixed text: for measuring what stands in front."""
    event_rate: float = 0.0
    """With `instant`: events per second of each stream; 0 sends all at once."""
    stamp: bool = False
    """With `instant`: each event's text is the sender's monotonic clock in ns."""
    null_usage: bool = True
    """Whether chunks carry `"usage": null` until the totals come, when usage was asked for."""
    reasoning: bool = False
    """Whether the model reasons before it answers a chat, unless the request turns it off; vLLM's `--reasoning-parser`."""
    guard: Mapping[str, str] = MappingProxyType({})
    """Words with their categories, such as `S9`: the engine answers chats as a guard model of the form of Llama Guard does. Empty for an
    engine that answers with words."""
    judge: Mapping[str, int] = MappingProxyType({})
    """Words with their scores, 1 to 5: the engine answers questions of Tidegate's judge. Empty for an engine that answers with words."""
    seed: int = 0
    faults: tuple[FaultRule, ...] = ()
    kv_events: str | None = None
    """The endpoint at which KV events are published, as `tcp://*:5557`; None for none."""
    kv_replay: str | None = None
    """The endpoint of replay requests; None for none."""
    kv_buffer: int = 10_000
    """Batches kept for replays."""
    role: Role = "both"
    """Prefill, decode, or both; SGLang's `--disaggregation-mode`. On vLLM each request decides."""
    transfer_tokens_s: float = 400_000.0
    """Tokens of KV per second that another engine fetches from it, before `speed`: an 8B model's (128 KiB each) at 50 GB/s."""
    lease_s: float = 30.0
    """How long KV is kept that is not fetched, and how long prefill and decode wait for each other, seconds; not changed by `speed`."""
    load_failure: Literal["recompute", "fail"] = "recompute"
    """The treatment of a request whose KV cannot be fetched; vLLM's `kv_load_failure_policy`. SGLang always fails it."""
    load_push: str | None = None
    """The endpoint at which its load is pushed as SGLang does, as `tcp://*:5559`; None for none."""

    def __post_init__(self) -> None:
        """Refuse contradictory or impossible values."""
        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect {self.dialect!r}: one of {', '.join(DIALECTS)}")
        if self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r}: one of {', '.join(PRESETS)}")
        if not self.models or self.speed <= 0 or self.block_size < 1 or self.max_num_seqs < 1:
            raise ValueError("models, speed, block_size and max_num_seqs must be positive")
        if len(self.loras) > self.max_loras or self.lora_load_s < 0:
            raise ValueError("max_loras must have room for loras, and lora_load_s must not be negative")
        if self.kv_replay is not None and self.kv_events is None:
            raise ValueError("replays of KV events need KV events")
        if self.transfer_tokens_s <= 0 or self.lease_s <= 0:
            raise ValueError("transfer_tokens_s and lease_s must be positive")
        if not all(word and code and "," not in code and code.isprintable() for word, code in self.guard.items()):
            raise ValueError("guard: a word or its category is empty or unprintable")
        if not all(word and score in range(1, 6) for word, score in self.judge.items()):
            raise ValueError("judge: a word is empty, or its score is not 1 to 5")
        if self.load_push is not None and self.dialect != "sglang":
            raise ValueError("only dialect sglang pushes its load")

    @property
    def timing(self) -> Timing:
        """The preset's constants, with this engine's capacity."""
        timing = PRESETS[self.preset]
        return timing if self.kv_tokens is None else msgspec.structs.replace(timing, kv_tokens=self.kv_tokens)
