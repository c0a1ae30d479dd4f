"""What `tidegate check` and `tidegate policy check` say of policies that answer similar questions: what was measured, what is missing."""

import importlib.util
from collections.abc import Iterator
from typing import Final

from cache.policy import SemanticPolicy
from gateway.config.settings import Settings
from policies.compile import PolicySet
from policies.schema import EVERYONE

MEASURED: Final[dict[str, tuple[float, float]]] = {"banking77": (0.84, 1.1), "clinc150": (0.43, 0.56)}
"""Of `verified`, on the halves of public sets that were kept away: wrong answers per hit in percent, and the upper end of the interval."""
STATIC: Final[dict[float, tuple[float, float]]] = {
    0.7: (16.4, 7.5),
    0.75: (12.7, 4.5),
    0.8: (7.0, 2.7),
    0.85: (5.6, 1.5),
    0.9: (2.8, 0.6),
    0.95: (1.9, 0.2),
}
"""Of thresholds, with the guard: wrong answers per hit in percent on the same two sets."""
PAGE: Final = "docs/reference/cache.md#similar-questions"
PACKAGES: Final = ("numpy", "tokenizers", "wordllama")
"""What the packaged embedder needs."""


def similar_questions(policies: PolicySet, settings: Settings | None) -> Iterator[str]:
    """A note for each policy that answers similar questions.

    Args:
        settings: those of the gateway; None where there are none at hand, so that nothing is said of the embedder.
    """
    asked = [(policy.tenant, policy.cache.semantic) for policy in policies.policies() if policy.cache is not None and policy.cache.semantic]
    for tenant, semantic in asked:
        whose = "every other tenant" if tenant == EVERYONE else f"tenant {tenant}"
        yield f"the policy of {whose} answers similar questions: {measured(semantic)} ({PAGE})"
    if not asked or settings is None:
        return
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing and settings.cache.semantic.embedder_pool is None:
        yield f"similar questions need the extra semantic, which is not installed here: pip install 'tidegate[semantic]' ({PAGE})"


def measured(semantic: SemanticPolicy) -> str:
    """What share of the answers was wrong where it was measured."""
    if semantic.threshold is None:
        shares = " and ".join(
            [f"{wrong:.2f} % (at most {upper:.2f} %, 95 % certain) on {name}" for name, (wrong, upper) in MEASURED.items()]
        )
        return f"wrong_per_hit {semantic.wrong_per_hit:.1%} is what it aims at; with 1 %, {shares} were wrong"
    near = max((one for one in STATIC if one <= semantic.threshold), default=min(STATIC))
    shares = " and ".join([f"{wrong:.1f} % on {name}" for name, wrong in zip(MEASURED, STATIC[near], strict=True)])
    return f"nothing bounds the wrong ones; with a threshold of {near:g}, {shares} were wrong"
