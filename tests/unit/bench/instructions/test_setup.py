from pathlib import Path

import pytest

from bench.instructions.setup import BARE, MINIMAL, STORED, VALKEY, Case, made
from gateway.config.load import load_settings


@pytest.mark.parametrize(
    ("case", "metric"),
    [
        (Case("1k"), "kinstr_plain_1k"),
        (Case("16k", "hit"), "kinstr_cache_hit_16k"),
        (Case("1k", backends=64), "kinstr_plain_1k@64_backends"),
        (Case("1k", tenants=10_000), "kinstr_plain_1k@10000_tenants"),
        (Case("1k", subject=VALKEY), "kinstr_plain_1k"),
        (Case("1k", subject=MINIMAL, backends=64), "kinstr_plain_1k"),
        (Case("1k", subject=BARE), "kinstr_plain_1k"),
        (Case("1k", stream=True), "kinstr_chat_stream_1k"),
        (Case("1k", api=STORED), "kinstr_responses_stored_plain_1k"),
    ],
)
def test_a_figure_is_named_by_what_differs_from_the_usual_case(case: Case, metric: str) -> None:
    assert case.metric == metric


def test_the_case_is_what_the_settings_say(tmp_path: Path) -> None:
    keys = made(tmp_path, Case("1k", backends=3, tenants=2))
    settings = load_settings(tmp_path / "tidegate.yaml", {})
    assert len(keys) == 2
    assert [len(pool.backends) for pool in settings.pools] == [3]
    assert settings.log.access
    assert settings.ledger.enabled


def test_the_minimal_gateway_has_one_backend_and_nothing_on(tmp_path: Path) -> None:
    made(tmp_path, Case("1k", subject=MINIMAL))
    settings = load_settings(tmp_path / "tidegate.yaml", {})
    assert [len(pool.backends) for pool in settings.pools] == [1]
    assert not settings.log.access
    assert not settings.ledger.enabled
    assert "rules" not in (tmp_path / "policies" / "default.yaml").read_text()
