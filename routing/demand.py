"""The routing request: all that routing one request depends on. The gateway makes it from an Ask, the simulator from a trace line."""

from collections.abc import Sequence

import msgspec


class Demand(msgspec.Struct, frozen=True, gc=False):
    """One request as the router sees it. Token counts are estimates where the served model's tokenizer is not configured."""

    prompt_tokens: int
    chain: Sequence[int] = ()
    """Prefix hashes, one for each whole block of the prompt, each standing for the prompt up to its block's end."""
    block_tokens: int = 64
    """Tokens per element of `chain`."""
    output_tokens: int = 256
    """Median of the expected output tokens, all sequences together."""
    output_tokens_p90: int = 1024
    """90th percentile of them."""
    session: int = 0
    """Keyed hash of the conversation that the request belongs to; 0 when the caller named none."""
    tenant: str = ""
    priority: float = 0.0
    """-1 to 1, higher is more important (tenant policy)."""
    lora: str = ""
    """The adapter as engines name it; empty for the base model."""
    ttft_slo_s: float | None = None
    """Seconds to the first token that the tenant's policy promises; None: no promise."""
    exact: bool = True
    """Whether `prompt_tokens` was counted and not estimated: an estimate alone never refuses a prompt that may fit."""
    one_prompt: bool = True
    """Whether `prompt_tokens` is one prompt; of several prompts only each one has to fit into a context."""
    tpot_slo_s: float | None = None
    """Seconds per output token that the tenant's policy promises; None: no promise."""
    region: str = ""
    """The caller's region, by the same names as the backends' `region`; empty: not known."""
