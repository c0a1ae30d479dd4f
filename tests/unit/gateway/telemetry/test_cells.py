from gateway.telemetry.cells import MAX_LABEL_CHARS, MAX_NAMES, Cells, named
from gateway.telemetry.families import MAX_SERIES, NONE, OTHER, PREFIX_TOKENS


def test_names_beyond_the_bound_are_one() -> None:
    seen: set[str] = set()
    found = {named(f"b{at}", seen) for at in range(2 * MAX_NAMES)}
    assert (len(found), OTHER in found, named("", seen)) == (MAX_NAMES + 1, True, NONE)
    assert len(named("x" * 1000, set())) == MAX_LABEL_CHARS


def test_a_family_never_has_more_series_than_its_ceiling_and_loses_nothing() -> None:
    cells = Cells(PREFIX_TOKENS)
    for at in range(3 * MAX_SERIES):
        cells.cell((f"p{at % 7}", f"b{at}"))[0] += 1
    rows = cells.rows()
    assert len(rows) * PREFIX_TOKENS.series <= MAX_SERIES
    assert sum(cell[0] for _, cell in rows) == 3 * MAX_SERIES
