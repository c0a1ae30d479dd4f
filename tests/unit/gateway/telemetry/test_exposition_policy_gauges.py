from gateway.process.snapshots import PolicyState, WorkerSnapshot
from gateway.telemetry.exposition import policy_rows


def worker(state: PolicyState) -> WorkerSnapshot:
    return WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, policies=state)


def test_one_worker_that_refuses_is_seen_and_so_is_the_oldest_set() -> None:
    seen = [worker(PolicyState("a", 50.0)), worker(PolicyState("b", 70.0, ("x",), 3)), worker(PolicyState("", 0.0))]
    assert dict(policy_rows(seen)) == {
        "tidegate_policies_refused": [((), 3.0)],
        "tidegate_policies_loaded_timestamp_seconds": [((), 50.0)],
    }


def test_before_policies_are_known_there_is_no_sample() -> None:
    assert dict(policy_rows([worker(PolicyState("", 0.0))])) == {}
