from math import log

from domain.rollouts import StoredRollout
from gateway.rollouts.hook import HookCounts
from gateway.rollouts.keeper import KeeperState
from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.rollout_gauges import ROLLOUT_COUNTERS, ROLLOUT_GAUGES, RolloutFigures, rollout_counts, rollout_rows
from gateway.telemetry.snapshot import MetricsSnapshot
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import begin, tick
from policies.rollout.samples import ArmSums, Interval, Tally
from policies.rollout.state import Read, RolloutStatus, standing, state_text


def stands() -> RolloutStatus:
    document = RolloutDocument.model_validate(
        {"name": "v2", "baseline": "a", "canary": "b", "warm_up_s": 0.0, "warm_up_requests": 0, "margins": {"itl": 0.05, "errors": 0.01}}
    )
    plan = document.plan("ro")
    sums = ArmSums(60, {"itl": Tally(60, 60 * log(0.012)), "errors": Tally(60, 0.0)})
    state = tick(plan, begin(plan, 0.0), 30.0, [Interval(1, sums, sums)]).state
    return standing(StoredRollout("ro", "v2", text_of(document), state_text(state), 1, True, 0.0, 0.0), Read(document, plan, state), 30.0)


def figures(*standings: RolloutStatus) -> RolloutFigures:
    keeper = KeeperState(standings, 1, 77.0, {"rollout.advance": 2})
    return RolloutFigures(keeper, HookCounts(sent=3, failed=1))


def test_every_rollout_says_where_it_is_and_what_is_found() -> None:
    rows = dict(rollout_rows(figures(stands())))
    assert set(rows) == set(ROLLOUT_GAUGES)
    assert rows["tidegate_rollout_share_ratio"] == [(("v2", "live"), 0.01), (("v2", "mirrored"), 0.0)]
    assert rows["tidegate_rollout_requests"] == [(("v2",), 60.0)]
    assert [labels[1] for labels, value in rows["tidegate_rollout_status"] if value] == ["running"]
    bounds = [labels[1:] for labels, _ in rows["tidegate_rollout_difference_ratio"]]
    assert sorted(bounds) == [("errors", "high"), ("errors", "low"), ("itl", "low")]  # too early for an upper bound of the latency
    assert rows["tidegate_rollout_judgement"] == [(("v2", "errors"), 0.0), (("v2", "itl"), 0.0)]
    assert rows["tidegate_rollout_looked_timestamp_seconds"] == [((), 77.0)]


def test_what_was_done_by_itself_is_counted_also_what_never_was() -> None:
    counts = dict(rollout_counts(figures()))
    assert set(counts) == set(ROLLOUT_COUNTERS)
    assert dict(counts["tidegate_rollout_changes_total"])[("rollout.advance",)] == 2.0
    assert dict(counts["tidegate_rollout_changes_total"])[("rollout.rollback",)] == 0.0
    assert counts["tidegate_rollout_webhooks_total"] == [(("sent",), 3.0), (("failed",), 1.0)]


def test_nothing_is_said_before_the_database_has_answered() -> None:
    assert list(rollout_rows(None)) == []
    assert list(rollout_rows(RolloutFigures(KeeperState(), HookCounts()))) == []


def test_they_are_on_the_page() -> None:
    text, _ = render(Scrape(MetricsSnapshot(), [], None, 1, "1", rollouts=figures(stands())))
    assert b'tidegate_rollout_share_ratio{rollout="v2",traffic="live"} 0.01' in text
    assert b'tidegate_rollout_webhooks_total{result="failed"} 1.0' in text
