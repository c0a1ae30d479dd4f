import pytest
from pydantic import ValidationError

from gateway.config.settings import RoutingSettings


def test_the_index_is_bounded_in_both_directions() -> None:
    assert RoutingSettings().index_blocks == 1_000_000
    for blocks in (1023, 100_000_001, 1.5, "many"):
        with pytest.raises(ValidationError):
            RoutingSettings.model_validate({"index_blocks": blocks})
