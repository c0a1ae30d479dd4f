"""The history of pools' loads out of Prometheus: what is asked, how often, and what is said while nothing is known."""

import msgspec
import pytest

from gateway.dashboards.prometheus import PrometheusAway
from gateway.telemetry.load_forecasts import LoadForecasts, load_query
from routing.forecast import DAY_S, SLOT_S, PredictSettings

DAY = 1_800_000_000.0 // DAY_S * DAY_S
NOW = DAY + 8.9 * 3600
LEAD = PredictSettings(lead_s=900.0, days=2)


class Past:
    """A Prometheus in which every day has jobs from nine to eleven."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.away = ""
        self.begins = 0.0
        self.closed = False

    async def get(self, path: str, params: list[tuple[str, str]]) -> tuple[int, bytes]:
        assert path == "/api/v1/query_range"
        self.asked.append(dict(params))
        if self.away == "503":
            return 503, b'{"status": "error", "error": "query timed out"}'
        if self.away:
            raise PrometheusAway(self.away)
        start, end, step = (float(self.asked[-1][name]) for name in ("start", "end", "step"))
        ends = [start + at * step for at in range(int((end - start) // step) + 1)]
        values = [(at, "NaN" if at <= self.begins else "8" if 9 <= (at - step / 2) % DAY_S / 3600 < 11 else "1") for at in ends]
        return 200, msgspec.json.encode(
            {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}
        )

    async def close(self) -> None:
        self.closed = True


class Stop(Exception):
    pass


def forecasts(past: Past, now: list[float]) -> LoadForecasts:
    async def sleep(_seconds: float) -> None:
        raise Stop

    return LoadForecasts({("chat", "both"): LEAD}, past, lambda: now[0], sleep)


async def test_the_history_is_read_once_and_then_what_is_new() -> None:
    past, now = Past(), [NOW]
    made = forecasts(past, now)
    assert made.growth("chat", "both").why == "no forecast: the history is being read"
    with pytest.raises(Stop):
        await made.run()
    assert past.asked[0]["query"] == 'max(avg_over_time(tidegate_pool_load_backends{pool="chat", role="both"}[600s]))'
    start, end = float(past.asked[0]["start"]), float(past.asked[0]["end"])
    assert end % SLOT_S == 0 and NOW - SLOT_S - 30 < end <= NOW - 30
    assert end - start == pytest.approx(LEAD.history_s, abs=SLOT_S)
    assert made.growth("chat", "both").backends == pytest.approx(7.0)
    await made.look()
    assert len(past.asked) == 1, "no slot has ended"
    now[0] += SLOT_S
    await made.look()
    assert float(past.asked[1]["start"]) == end - 3600
    assert made.growth("bare", "both").why == ""
    await made.close()
    assert past.closed


async def test_a_store_that_was_late_is_asked_for_the_whole_history_again() -> None:
    past, now = Past(), [NOW]
    past.begins = NOW + DAY_S
    made = forecasts(past, now)
    await made.look()
    assert made.growth("chat", "both").backends is None, "it answered, and knew nothing"
    past.begins, now[0] = 0.0, NOW + SLOT_S
    await made.look()
    assert made.growth("chat", "both").backends is not None
    # what it answered in part it may know whole some hours later
    now[0] = NOW + 7 * 3600
    await made.look()
    start, end = float(past.asked[-1]["start"]), float(past.asked[-1]["end"])
    assert end - start == pytest.approx(LEAD.history_s, abs=SLOT_S)


async def test_a_question_that_fails_for_one_pool_holds_up_no_other() -> None:
    class Picky(Past):
        async def get(self, path: str, params: list[tuple[str, str]]) -> tuple[int, bytes]:
            if 'pool="dear"' in dict(params)["query"]:
                return 422, b'{"status": "error", "error": "too many samples"}'
            return await super().get(path, params)

    made = LoadForecasts({("dear", "both"): LEAD, ("chat", "both"): LEAD}, Picky(), lambda: NOW)
    await made.look()
    assert made.growth("chat", "both").backends == pytest.approx(7.0)
    assert "too many samples" in made.growth("dear", "both").why


async def test_while_prometheus_is_away_the_known_days_go_on_telling() -> None:
    past, now = Past(), [NOW]
    past.away = "cannot be reached (ConnectError)"
    made = forecasts(past, now)
    await made.look()
    assert made.growth("chat", "both").why == "no forecast: Prometheus cannot be reached (ConnectError)"
    past.away = "503"
    await made.look()
    assert made.growth("chat", "both").why == "no forecast: Prometheus answered 503: query timed out"
    past.away = ""
    await made.look()
    past.away = "503"
    now[0] += 23 * 3600
    await made.look()
    assert made.growth("chat", "both").seasons == 2, "nothing of the last hours is needed"
    now[0] += 2 * 3600
    assert made.growth("chat", "both").seasons == 1, "the day before was not read that far"


async def test_a_young_history_is_told() -> None:
    past = Past()
    past.begins = DAY + 3600
    made = forecasts(past, [DAY + 3 * 3600])
    await made.look()
    assert made.growth("chat", "both").backends is None
    assert made.growth("chat", "both").why == "no forecast: the history is of 2.0 hours, less than a day"


def test_names_of_pools_are_quoted() -> None:
    assert load_query('a"b\\c', "decode") == 'max(avg_over_time(tidegate_pool_load_backends{pool="a\\"b\\\\c", role="decode"}[600s]))'
