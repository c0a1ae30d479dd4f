from gateway.process.snapshots import IssuerState, WorkerSnapshot
from gateway.telemetry.exposition import issuer_rows


def worker(*issuers: IssuerState) -> WorkerSnapshot:
    return WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, issuers=issuers)


def test_of_several_workers_the_fewest_keys_and_the_oldest_reading_count() -> None:
    seen = [worker(IssuerState("https://a", 3, 5.0), IssuerState("https://b", 0, None)), worker(IssuerState("https://a", 2, 9.0))]
    assert dict(issuer_rows(seen)) == {
        "tidegate_jwks_keys": [(("https://a",), 2.0), (("https://b",), 0.0)],
        "tidegate_jwks_age_seconds": [(("https://a",), 9.0)],
    }
