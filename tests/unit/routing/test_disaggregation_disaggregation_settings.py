import pytest
from pydantic import ValidationError

from routing.disaggregation import DisaggregationSettings, HandoverTerms


def test_bandwidth_is_written_in_gigabytes() -> None:
    terms = DisaggregationSettings(kv_bytes_token=131_072, bandwidth_gb_s=50).terms(pairs_whole=True)
    assert terms == HandoverTerms(131_072, 50e9, pairs_whole=True)


def test_defaults_are_the_routers_own() -> None:
    terms, given = HandoverTerms(1, 1e9), DisaggregationSettings(kv_bytes_token=1, bandwidth_gb_s=1).terms(pairs_whole=False)
    assert given == terms


@pytest.mark.parametrize("wrong", [{"kv_bytes_token": 0}, {"bandwidth_gb_s": 0}, {"min_uncached_share": 1.1}, {"fixed_s": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        DisaggregationSettings.model_validate({"kv_bytes_token": 1, "bandwidth_gb_s": 1, **wrong})
