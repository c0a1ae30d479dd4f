from gateway.process.snapshots import CertificateState, IssuerState, PolicyState, WorkerSnapshot
from gateway.telemetry.exposition import certificate_rows, issuer_rows, policy_rows


def worker_with_issuers(*issuers: IssuerState) -> WorkerSnapshot:
    return WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, issuers=issuers)


def test_of_several_workers_the_fewest_keys_and_the_oldest_reading_count() -> None:
    seen = [
        worker_with_issuers(IssuerState("https://a", 3, 5.0), IssuerState("https://b", 0, None)),
        worker_with_issuers(IssuerState("https://a", 2, 9.0)),
    ]
    assert dict(issuer_rows(seen)) == {
        "tidegate_jwks_keys": [(("https://a",), 2.0), (("https://b",), 0.0)],
        "tidegate_jwks_age_seconds": [(("https://a",), 9.0)],
    }


def worker_with_policies(state: PolicyState) -> WorkerSnapshot:
    return WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, policies=state)


def test_one_worker_that_refuses_is_seen_and_so_is_the_oldest_set() -> None:
    seen = [
        worker_with_policies(PolicyState("a", 50.0)),
        worker_with_policies(PolicyState("b", 70.0, ("x",), 3)),
        worker_with_policies(PolicyState("", 0.0)),
    ]
    assert dict(policy_rows(seen)) == {
        "tidegate_policies_refused": [((), 3.0)],
        "tidegate_policies_loaded_timestamp_seconds": [((), 50.0)],
    }


def test_before_policies_are_known_there_is_no_sample() -> None:
    assert dict(policy_rows([worker_with_policies(PolicyState("", 0.0))])) == {}


def test_of_several_workers_the_certificate_that_expires_first_counts() -> None:
    def worker(*ends: float) -> WorkerSnapshot:
        certificates = [CertificateState("engines", "chat", at) for at in ends] + [CertificateState("callers", "", 90.0)]
        return WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, certificates=tuple(certificates))

    name = "tidegate_certificate_expires_timestamp_seconds"
    assert dict(certificate_rows([worker(70.0), worker(50.0), worker()])) == {
        name: [(("engines", "chat"), 50.0), (("callers", "_none"), 90.0)]
    }
    assert dict(certificate_rows([])) == {name: []}
