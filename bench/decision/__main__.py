"""`python -m bench.decision`: what one routing decision costs. A subject is a module here with `measure(args) -> Part`."""

import argparse

from bench.decision import index
from bench.results_file import machine, refresh, write_rows

SUBJECTS = (index,)


def main() -> None:
    """Measure all subjects, and refresh the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of which the best counts, where the time of a call is measured")
    parser.add_argument("--prompts", type=int, default=10_000_000, help="distinct prompts put into an index of a million blocks")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    parts = [subject.measure(args.rounds, args.prompts) for subject in SUBJECTS]
    text = "\n\n".join(text for _, text in parts)
    print(text)
    if not args.print_only:
        write_rows("decision", [row for rows, _ in parts for row in rows])
        refresh("decision", f"`make bench-decision`, {machine()}; times are the best of {args.rounds}.\n\n{text}\n")


if __name__ == "__main__":
    main()
