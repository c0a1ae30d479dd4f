"""Settings of disaggregated prefill and decode in one pool (docs/disaggregation.md); the gateway and the simulator read them."""

from pydantic import Field

from domain.strict import Strict
from routing.disaggregation import Terms


class DisaggregationSettings(Strict):
    """What a KV transfer between two engines costs, and which requests are considered for disaggregation."""

    kv_bytes_token: int = Field(
        ge=1,
        le=100_000_000,
        description="Bytes that one token takes in the KV cache, all layers together; docs/disaggregation.md has the formula.",
    )
    bandwidth_gb_s: float = Field(gt=0, le=100_000, description="Gigabytes a second between two engines, as measured.")
    fixed_s: float = Field(default=0.01, ge=0, le=60, description="Seconds that every hand-over takes besides, however short the prompt.")
    min_uncached_tokens: int = Field(
        default=2048, ge=0, le=100_000_000, description="Requests with fewer tokens to compute are served whole."
    )
    min_uncached_share: float = Field(
        default=0.5, ge=0, le=1, description="So are those of whose prompt less than this share has to be computed."
    )
    decode_reuses: bool = Field(
        default=False,
        description="Whether decoding engines keep what they were handed for later prompts, so that it need not be moved again.",
    )

    def terms(self, *, pairs_whole: bool) -> Terms:
        """The settings as the value that deciders take; `pairs_whole` comes from the engine's dialect."""
        return Terms(
            kv_bytes_token=self.kv_bytes_token,
            bandwidth_bytes_s=self.bandwidth_gb_s * 1e9,
            fixed_s=self.fixed_s,
            min_uncached_tokens=self.min_uncached_tokens,
            min_uncached_share=self.min_uncached_share,
            decode_reuses=self.decode_reuses,
            pairs_whole=pairs_whole,
        )
