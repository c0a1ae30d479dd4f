"""Soft thresholds are told, and not too often."""

from gateway.record import Record
from gateway.telemetry.logs import MAX_LOGGED_LIMITS, SOFT_LIMIT_QUIET_S, Thresholds


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})


def crossed(*limits: str, tenant: str = "acme") -> Record:
    return Record("r", 0.0, "ok", 200, 0.1, 0.0, tenant=tenant, user="ann@example.com", soft_limits=limits)


def test_each_limit_is_told_of_once_in_a_while_and_the_end_user_never() -> None:
    log, now = Log(), [0.0]
    thresholds = Thresholds(log, lambda: now[0])
    for _ in range(5):
        thresholds.observe(crossed("a", "b"))
    thresholds.observe(crossed("a", tenant="bolt"))
    assert [(line["event"], line["tenant"], line["limit"]) for line in log.lines] == [
        ("soft threshold crossed", "acme", "a"),
        ("soft threshold crossed", "acme", "b"),
        ("soft threshold crossed", "bolt", "a"),
    ]
    assert "ann@example.com" not in str(log.lines)
    now[0] = SOFT_LIMIT_QUIET_S
    thresholds.observe(crossed("a"))
    assert len(log.lines) == 4


def test_what_is_remembered_is_bounded() -> None:
    log = Log()
    thresholds = Thresholds(log, lambda: 0.0)
    for n in range(MAX_LOGGED_LIMITS + 1):
        thresholds.observe(crossed(f"l{n}"))
    thresholds.observe(crossed("l0"))
    assert len(log.lines) == MAX_LOGGED_LIMITS + 2
