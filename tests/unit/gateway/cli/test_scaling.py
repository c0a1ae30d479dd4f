"""`tidegate scaling`: the recommendation over the admin API."""

from pathlib import Path

import pytest
import yaml

from gateway.cli.scaling import _values
from tests.admin_socket import admin_socket


def test_the_recommendation_is_told_in_words(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        shown = port.run("scaling")
        assert shown.exit_code == 0, shown.output
        assert "the pool has no backend" in shown.stdout
        chat, bare, *_ = port.json("scaling")
        assert (chat["pool"], chat["present"], chat["wanted"]) == ("chat", 0, 2)
        assert bare["wanted"] is None


def test_a_pool_without_forecasts_has_no_hours(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        refused = port.run("scaling", "--hours", "nowhere")
        assert refused.exit_code == 1 and "has a section predict" in refused.stderr


def test_hours_become_values_of_the_chart() -> None:
    one = {"start": "08:45", "end": "00:00", "engines": 4}
    text = _values({"pool": "chat", "zone": "Europe/Berlin", "hours": [{}] * 24, "min": 0, "max": 4, "schedule": [one]})
    cron = {"start": "45 8 * * *", "end": "0 0 * * *", "timezone": "Europe/Berlin", "engines": 4}
    assert yaml.safe_load(text) == {"autoscaling": {"min": 1, "max": 4, "schedule": [cron]}}


@pytest.mark.parametrize("hours", [0, 7])
def test_hours_that_are_not_known_are_said(hours: int) -> None:
    text = _values({"pool": "chat", "zone": "UTC", "hours": [{}] * hours, "min": None, "max": 1, "schedule": []})
    assert text == f"\n{hours} of the 24 hours of a day are known: there is no schedule yet\n"
