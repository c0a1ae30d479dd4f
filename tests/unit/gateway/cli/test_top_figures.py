"""The figures of `tidegate top`: rates between two looks, quantiles, order, and tables that fit the terminal."""

import pytest
from rich.console import Console

from backends.signals import Signals
from gateway.cli.top_figures import FLEET, TENANTS, Look, View, cell_of, figures, look, ordered, quantile_s, screen
from gateway.placement.backend_state import BackendState, LimitView

BEFORE = """
tidegate_requests_total{model="chat",endpoint="/v1/chat/completions",outcome="ok",status_class="2xx"} 10
tidegate_class_requests_total{class="default",result="ok"} 10
tidegate_tokens_total{model="chat",tenant="acme",type="prompt"} 1000
tidegate_tokens_total{model="chat",tenant="acme",type="cached"} 500
tidegate_tokens_total{model="chat",tenant="acme",type="completion"} 100
tidegate_backend_tokens_total{pool="chat",backend="gpu-1",type="completion"} 100
"""
NOW = """
tidegate_requests_total{model="chat",endpoint="/v1/chat/completions",outcome="ok",status_class="2xx"} 30
tidegate_requests_total{model="chat",endpoint="/v1/chat/completions",outcome="engine_error",status_class="5xx"} 2
tidegate_class_requests_total{class="default",result="ok"} 30
tidegate_class_requests_total{class="default",result="engine"} 2
tidegate_tokens_total{model="chat",tenant="acme",type="prompt"} 3000
tidegate_tokens_total{model="chat",tenant="acme",type="cached"} 1000
tidegate_tokens_total{model="chat",tenant="acme",type="completion"} 300
tidegate_cost_usd_total{model="chat",tenant="acme"} 0.5
tidegate_backend_tokens_total{pool="chat",backend="gpu-1",type="completion"} 300
tidegate_backend_usd_per_hour{pool="chat",backend="gpu-1"} 4
tidegate_limit_headroom_ratio{tenant="acme"} 0.25
tidegate_budget_headroom_ratio{tenant="quiet"} 0.9
tidegate_in_flight_requests 3
tidegate_queue_depth{pool="chat",class="default"} 1
tidegate_worker_state{worker="0",state="ready"} 1
tidegate_worker_state{worker="1",state="missing"} 1
"""


def signals() -> Signals:
    return Signals(read_at=0.0, running=2, waiting=0, kv_usage=0.5)


ENGINES = [
    BackendState("chat", "gpu-1", True, in_flight=3, signals=signals(), state="up", limit=LimitView(64.0, None, 32.0)),
    BackendState("chat", "gpu-2", False, "it does not answer", state="down"),
]


@pytest.fixture
def shown() -> dict[str, object]:
    return figures(look(100.0, ENGINES, BEFORE), look(102.0, ENGINES, NOW))


def test_rates_are_of_the_time_between_two_looks(shown: dict[str, dict[str, float]]) -> None:
    gateway = shown["gateway"]
    assert (gateway["requests_per_s"], gateway["failures_per_s"], gateway["refused_per_s"]) == (11.0, 1.0, 0.0)
    assert (gateway["prompt_tokens_per_s"], gateway["completion_tokens_per_s"]) == (1000.0, 100.0)
    assert (gateway["in_flight"], gateway["queued"], gateway["workers_ready"], gateway["workers_missing"]) == (3, 1, 1, 1)
    assert gateway["usd_per_h"] == 900.0


def test_engines_have_their_own_numbers_and_what_nobody_knows_is_none(shown: dict[str, list[dict[str, object]]]) -> None:
    first, second = shown["fleet"]
    assert (first["state"], first["limit"], first["running"], first["kv"], first["tokens_per_s"]) == ("up", 32, 2, 0.5, 100.0)
    assert (first["usd_per_h"], second["usd_per_h"]) == (4.0, None)
    assert (second["state"], second["why"], second["running"], second["kv"]) == ("down", "it does not answer", None, None)


def test_tenants_are_those_that_used_something_or_have_limits(shown: dict[str, list[dict[str, object]]]) -> None:
    acme, quiet = shown["tenants"]
    assert acme == {
        "tenant": "acme",
        "tokens_per_s": 1100.0,
        "cached": 0.25,
        "usd_per_h": 900.0,
        "rate_left": 0.25,
        "budget_left": None,
        "cache_hits": None,
        "findings_per_s": 0.0,
    }
    assert (quiet["tenant"], quiet["tokens_per_s"], quiet["budget_left"]) == ("quiet", 0.0, 0.9)


def test_a_counter_that_fell_began_anew() -> None:
    of = 'tidegate_requests_total{{model="m",endpoint="e",outcome="ok",status_class="2xx"}} {}\n'
    assert figures(look(0.0, [], of.format(100)), look(1.0, [], of.format(7)))["gateway"]["requests_per_s"] == 7.0


def test_a_page_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        look(0.0, [], "<html>not {metrics</html>")


def buckets(*counts: tuple[str, float]) -> Look:
    return look(0.0, [], "".join(f'h_bucket{{le="{edge}"}} {count}\n' for edge, count in counts))


def test_quantiles_are_of_what_was_counted_between_the_looks() -> None:
    before, now = buckets(("0.1", 100), ("1.0", 100), ("+Inf", 100)), buckets(("0.1", 100), ("1.0", 110), ("+Inf", 110))
    assert quantile_s(0.5, before, now, "h_bucket") == pytest.approx(0.55)
    assert quantile_s(0.5, now, now, "h_bucket") is None
    beyond = buckets(("0.1", 100), ("1.0", 100), ("+Inf", 110))
    assert quantile_s(0.5, before, beyond, "h_bucket") == 1.0, "above the last edge nobody knows how far"


def test_numbers_come_from_the_highest_and_unknown_ones_last() -> None:
    rows = [{"n": 1, "t": "b"}, {"n": None, "t": "c"}, {"n": 3, "t": "a"}]
    assert [row["n"] for row in ordered(rows, "n", reverse=False)] == [3, 1, None]
    assert [row["n"] for row in ordered(rows, "n", reverse=True)] == [1, 3, None]
    assert [row["t"] for row in ordered(rows, "t", reverse=False)] == ["a", "b", "c"]
    assert [row["t"] for row in ordered(rows, "t", reverse=True)] == ["c", "b", "a"]


def test_figures_as_text() -> None:
    assert [cell_of("kv", 0.5), cell_of("kv", None), cell_of("usd_per_h", 1234.5)] == ["50%", "?", "$1,234.50"]
    assert [cell_of("tokens_per_s", rate) for rate in (0.0, 2.25, 12345.6)] == ["0", "2.2", "12,346"]


def frame(shown: dict[str, object], width: int, height: int | None, view: View | None = None) -> list[str]:
    console = Console(width=width, record=True, file=None, force_terminal=False, color_system=None)
    with console.capture() as printed:
        console.print(screen(shown, view or View(), width, height))
    return printed.get().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_a_frame_fits_the_terminal(shown: dict[str, object], width: int, height: int) -> None:
    lines = frame(shown, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "gpu-1" in "\n".join(lines)


def test_a_terminal_of_80_columns_shows_what_matters(shown: dict[str, object]) -> None:
    text = "\n".join(frame(shown, 80, 24))
    for word in ("11.0 requests/s", "1.0 failed", "fleet (2)", "gpu-2", "down", "tenants (2)", "acme", "$900.00", "25%", "q quit"):
        assert word in text
    assert "usd/h" in text


def test_many_rows_are_cut_to_the_terminal_and_counted(shown: dict[str, object]) -> None:
    tenants = [{**shown["tenants"][0], "tenant": f"tenant-{n:03}", "tokens_per_s": float(n)} for n in range(100)]  # type: ignore[index]
    text = "\n".join(frame({**shown, "tenants": tenants}, 80, 24, View(sort="tokens_per_s")))
    assert "of 100)" in text
    assert "tenant-099" in text
    assert "tenant-000" not in text
    assert "tenant-000" in "\n".join(frame({**shown, "tenants": tenants}, 80, None, View(sort="tokens_per_s")))


def test_the_reader_goes_through_columns_and_tables() -> None:
    view = View()
    seen = []
    for _ in range(len(set(FLEET) | set(TENANTS))):
        view.next_sort()
        seen.append(view.sort)
    assert set(seen) == set(FLEET) | set(TENANTS)
    tables = []
    for _ in range(3):
        view.next_tables()
        tables.append(view.tables)
    assert tables == ["fleet", "tenants", "both"]


def test_only_the_chosen_table_is_drawn(shown: dict[str, object]) -> None:
    text = "\n".join(frame(shown, 80, 24, View(tables="tenants", notes=("gpu-2: it does not answer",))))
    assert "fleet (" not in text
    assert "tenants (2)" in text
    assert "gpu-2: it does not answer" in text
