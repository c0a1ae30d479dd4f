import pytest
from pydantic import ValidationError

from domain.priority import Class
from gateway.config.settings import QueueSettings
from tenancy.fair_queue import QueueBounds


def test_nobody_gives_way_unless_it_is_written() -> None:
    assert QueueSettings().gives_way is None
    assert QueueSettings(preempt="none").gives_way is None
    assert QueueSettings(preempt="batch").gives_way is Class.BATCH
    assert QueueSettings(preempt="default").gives_way is Class.DEFAULT


def test_what_people_and_systems_cannot_do_without_never_gives_way() -> None:
    for word in ("critical", "interactive"):
        with pytest.raises(ValidationError):
            QueueSettings.model_validate({"preempt": word})


def test_its_bounds_are_those_of_the_line() -> None:
    assert QueueSettings().bounds == QueueBounds()
    assert QueueSettings(max_requests=5, max_bytes=6, max_requests_per_tenant=3, max_bytes_per_tenant=2048).bounds == QueueBounds(
        5, 6, 3, 2048
    )
