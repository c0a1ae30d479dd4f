"""`python -m bench.tokens.output_lengths`: pinball loss of expected output lengths on the real requests in `tests/wire/output_lengths`.

Each length is told before its answer is seen. `one for all`: quantiles over all requests; `own groups`: by tenant and route.
"""

import csv
from pathlib import Path

from bench.results_file import refresh, rows_of, table, write_rows
from routing.output_length import OutputLengths

REAL = Path(__file__).parents[2] / "tests" / "wire" / "output_lengths" / "requests.csv"


def pinball(told: int, tokens: int, share: float) -> float:
    """The loss that a quantile minimises, in tokens."""
    return (tokens - told) * share if tokens >= told else (told - tokens) * (1 - share)


def main() -> None:
    """Measure, write the rows and the table."""
    with REAL.open() as file:
        requests = [(row["tenant"], row["route"], int(row["output_tokens"])) for row in csv.DictReader(file)]
    sums: dict[tuple[str, str, str], float] = {}
    counts: dict[str, int] = {}
    for subject in ("one for all", "own groups"):
        lengths = OutputLengths()
        for tenant, route, tokens in requests:
            known = (tenant, route) if subject == "own groups" else ("", "")
            told = lengths.expect(*known, 0, None)
            for metric, loss in (("median", pinball(told.median, tokens, 0.5)), ("p90", pinball(told.high, tokens, 0.9))):
                for where in (route, "all"):
                    key = (f"{metric}:{where}", subject, "tokens")
                    sums[key] = sums.get(key, 0.0) + loss
            lengths.note(*known, 0, tokens, None)
    for _, route, _ in requests:
        counts[route] = counts.get(route, 0) + 1
    counts["all"] = len(requests)
    rows = rows_of({key: [total / counts[key[0].partition(":")[2]]] for key, total in sums.items()})
    write_rows("output_lengths", rows)
    metrics = sorted({row["metric"] for row in rows})
    refresh("output-lengths", table(rows, metrics, "one for all"))
    print(table(rows, metrics, "one for all"))


if __name__ == "__main__":
    main()
