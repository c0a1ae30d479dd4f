"""The routers that are compared, each in front of the same engines."""

from functools import partial

from bench.overhead.subjects import Starter, sglang_router, tidegate, vllm_router

SUBJECTS: dict[str, tuple[str, Starter]] = {
    **{
        f"tidegate {policy}": ("tidegate", partial(tidegate, policy=policy))
        for policy in ("predicted_latency", "weighted", "lmetric", "p2c")
    },
    "sglang-router cache_aware": ("sglang-router", sglang_router),
    "sglang-router round_robin": ("sglang-router", partial(sglang_router, policy="round_robin")),
    "vllm-router cache_aware": ("vllm-router", vllm_router),
}
"""Which program it needs, and how it is started."""
