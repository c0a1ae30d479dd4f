"""What placing one request depends on, and nothing else of it. Made from an Ask by the gateway, from a trace line by the simulator."""

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
    """Median of what is expected to be generated, all sequences together."""
    output_tokens_p90: int = 1024
    session: int = 0
    """Keyed hash of the conversation it belongs to; 0 when nobody said."""
    tenant: str = ""
    priority: float = 0.0
    """-1 to 1 (tenant policy); equal for all candidates of one request."""
    lora: str = ""
    """The adapter as engines name it; empty for the base model."""
    ttft_slo_s: float | None = None
    """Seconds to the first token that its tenant was promised."""
    exact: bool = True
    """Whether `prompt_tokens` were counted and not estimated: an estimate alone refuses nobody whose prompt may fit."""
    one_prompt: bool = True
    """Whether they are all of one prompt; of several only each has to fit into a context."""
    tpot_slo_s: float | None = None
    """Seconds from one token to the next that it was promised."""
    region: str = ""
    """Where the caller is, in the words of the backends' own `region`."""
