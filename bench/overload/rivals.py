"""Other ways to find what an engine bears, as published, for comparison in the same simulation."""

from math import inf, sqrt

from tests.one_engine import Told

FIXED = 256.0
WINDOW_S = 0.3


class Gradient2:
    """Netflix's concurrency-limits, `Gradient2Limit`, on the time to the first token per uncached token, which total time is not:
    g = clamp(1.5 long / short, 0.5, 1); limit = 0.8 limit + 0.2 (limit g + queue), queue = 4; no growth below half use."""

    def __init__(self) -> None:
        self.limit, self._long = 20.0, 0.0
        self._ttft = self._units = 0.0
        self._count, self._until = 0, 0.0

    def room(self) -> tuple[float, float]:
        return self.limit, inf

    def began(self, uncached: int, before: float, ttft_s: float) -> None:
        self._ttft += ttft_s
        self._units += FIXED + uncached
        self._count += 1

    def ended(self, gap_s: float) -> None:
        pass

    def look(self, own: int, begun: int, told: Told | None, now: float) -> None:
        if now < self._until or self._count < 10:
            return
        short = self._ttft / self._units
        self._long += (0.02 if self._long else 1.0) * (short - self._long)
        if self._long > 2.0 * short:
            self._long *= 0.95
        if own >= self.limit / 2:
            gradient = max(0.5, min(1.0, 1.5 * self._long / short))
            self.limit = max(1.0, min(4096.0, 0.8 * self.limit + 0.2 * (self.limit * gradient + 4.0)))
        self._ttft = self._units = 0.0
        self._count, self._until = 0, now + WINDOW_S


class Envoy:
    """Envoy's adaptive concurrency on the same measure: limit = limit clamp(1.25 least / sample, 0.5, 2) + sqrt(limit)."""

    def __init__(self) -> None:
        self.limit, self._least = 20.0, inf
        self._samples: list[float] = []
        self._until = 0.0

    def room(self) -> tuple[float, float]:
        return self.limit, inf

    def began(self, uncached: int, before: float, ttft_s: float) -> None:
        self._samples.append(ttft_s / (FIXED + uncached))

    def ended(self, gap_s: float) -> None:
        pass

    def look(self, own: int, begun: int, told: Told | None, now: float) -> None:
        if now < self._until or len(self._samples) < 10:
            return
        middle = sorted(self._samples)[len(self._samples) // 2]
        self._least = min(self._least, middle)  # its minimum is measured anew at a concurrency of 3, which no loaded fleet can afford
        gradient = max(0.5, min(2.0, 1.25 * self._least / middle))
        self.limit = max(3.0, min(1000.0, self.limit * gradient + sqrt(self.limit)))
        self._samples, self._until = [], now + WINDOW_S


class AimdOnWaiting:
    """One more in each window that uses the limit, a tenth less when the engine says that anything waits."""

    def __init__(self) -> None:
        self.limit, self._until, self._waiting, self._own = 64.0, 0.0, 0, 0

    def room(self) -> tuple[float, float]:
        return self.limit, inf

    def began(self, uncached: int, before: float, ttft_s: float) -> None:
        pass

    def ended(self, gap_s: float) -> None:
        pass

    def look(self, own: int, begun: int, told: Told | None, now: float) -> None:
        if told is None:
            return
        self._waiting, self._own = max(self._waiting, told.waiting), max(self._own, own)
        if now >= self._until:
            if self._waiting:
                self.limit = max(1.0, 0.9 * self.limit)
            elif self._own >= 0.9 * self.limit:
                self.limit += 1.0
            self._waiting, self._own, self._until = 0, 0, now + WINDOW_S
