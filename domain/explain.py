"""Explanations: values that deciders return beside their decision, so that deciders need no logging."""

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """One backend that a routing decision considered.

    `terms` holds the named parts of its cost in the policy's own unit, lower is better; `excluded` is the reason why
    it could not be chosen, or None.
    """

    backend: str
    terms: tuple[tuple[str, float], ...] = ()
    excluded: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Why a request was routed to a backend."""

    policy: str
    candidates: tuple[Candidate, ...]

    def sentence(self) -> str:
        """The decision in words, for an operator: the ranked candidates with their terms, then each excluded one's reason."""
        chosen = [c for c in self.candidates if c.excluded is None]
        parts = [f"{c.backend} ({', '.join(f'{k}={v + 0.0:g}' for k, v in c.terms)})" if c.terms else c.backend for c in chosen]
        out = [f"{c.backend}: {c.excluded}" for c in self.candidates if c.excluded is not None]
        return f"{self.policy}: {' < '.join(parts) or 'nobody eligible'}" + (f"; excluded {', '.join(out)}" if out else "")
