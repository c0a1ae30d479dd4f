import io

import pytest
import typer
from rich.console import Console

from gateway.cli.printing import amount_of, cell, dollars, moment, table_of


def test_dollars_are_exact():
    assert [dollars(n) for n in (0, 1, 1_500, 10**9, 123_456_789_012)] == [
        "0.000000",
        "0.000000001",
        "0.0000015",
        "1.000000",
        "123.456789012",
    ]


def test_amounts_are_whole_numbers_or_exact_money() -> None:
    assert [amount_of(text) for text in ("600", "$12.50", "$0.000000001", "$0")] == [600, 12_500_000_000, 1, 0]
    for text in ("", "$", "12.5", "$0.0000000001", "$-1", "$nan", "$inf", "a lot"):
        with pytest.raises(typer.Exit) as ended:
            amount_of(text)
        assert ended.value.exit_code == 2


def test_cells_are_for_people() -> None:
    assert moment(1_800_000_000.4) == "2027-01-15T08:00:00+00:00"
    assert cell("expires_unix", 1_800_000_000) == "2027-01-15T08:00:00+00:00"
    values = (None, "", [], True, False, 0, ["a", "b"])
    assert [cell("x", value) for value in values] == ["", "", "", "yes", "", "0", "a, b"]


def test_an_id_is_whole_on_a_narrow_terminal() -> None:
    limit = "project:acme/a-project-with-a-long-name:concurrent_requests:now"
    written = io.StringIO()
    narrow = Console(width=60, file=written)
    narrow.print(
        table_of([{"id": limit, "amount": 5, "used": 1, "held": 1, "remaining": 3}], ("id", "amount", "used", "held", "remaining"))
    )
    cells = [line.split("│")[1].strip() for line in written.getvalue().splitlines() if line.count("│") > 4]
    assert "".join(cells) == limit
