from backends.loras import NONE, InUse
from backends.signals import Signals
from gateway.adapters import FRESH_S, adapters_in_use
from gateway.deps import Live
from routing.fleet import Fleet


def test_an_engines_word_on_what_it_runs_counts_while_it_is_fresh() -> None:
    live = Live(None, None, Fleet({}))  # type: ignore[arg-type]  # only the signals are looked at
    assert adapters_in_use(live, lambda: 0.0, "a") == NONE
    live.signals["a"] = Signals(read_at=10.0, loras=("bot@1",))
    assert adapters_in_use(live, lambda: 10.0 + FRESH_S, "a") == InUse(("bot@1",), 10.0)
    assert adapters_in_use(live, lambda: 10.1 + FRESH_S, "a") == NONE
    live.signals["a"] = Signals(read_at=10.0)
    assert adapters_in_use(live, lambda: 10.0, "a") == NONE
