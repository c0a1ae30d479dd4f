import io

from rich.console import Console

from gateway.cli.printing import cell, moment, table_of


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
