"""Engines' metrics pages: every sample that was written, nothing from between the lines, and time in proportion to the page."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from backends.dialects import DIALECTS
from backends.prometheus_text import PrometheusSample, SeriesPlaces, WantedSeries
from tests.fuzz.mutation import Target

WIRE = Path(__file__).parents[1] / "wire" / "engine_metrics"
PAGES = [path.read_bytes() for path in sorted(WIRE.iterdir())]
NAMES = sorted({name.decode() for page in PAGES for name in re.findall(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)", page, re.MULTILINE)})
PIECES = [
    b"\n",
    b"\r",
    b"{",
    b"}",
    b'"',
    b"\\",
    b'\\"',
    b"\\n",
    b"\\\\",
    b",",
    b"=",
    b" ",
    b"\t",
    b"#",
    b"NaN",
    b"+Inf",
    b"-Inf",
    b"\0",
    b"\xff",
    b"1e400",
    b"_",
    b'{a="b"}',
    b'le="+Inf"',
    b"=" * 500,
    b'"' * 500,
    b"\\" * 500,
    b"{" * 500,
    b'x="y",' * 500,
    *(name.encode() for name in NAMES[:20]),
]
METRICS = Target("prometheus", PIECES, PAGES)
WANTED = WantedSeries(NAMES)
READERS = [(name, dialect.read_signals) for name, dialect in DIALECTS.items() if dialect.read_signals is not None]


def page(data: bytes) -> str:
    outcome = ""
    for name, read in READERS:
        try:
            signals = read(data, 1.0)
        except ValueError as error:
            assert 0 < len(str(error)) < 1000
            outcome += f" {name} refused"
            continue
        for value in (getattr(signals, field) for field in signals.__struct_fields__):
            assert not isinstance(value, float) or math.isfinite(value)
            assert not isinstance(value, int) or value >= 0, signals
        outcome += f" {name} {len(signals.missing)}"
    try:
        found = WANTED.find(data)
    except ValueError:
        return "too much" + outcome
    assert all(math.isfinite(sample.value) for samples in found.values() for sample in samples)
    # what a line says does not depend on the lines around it
    alone: dict[str, list[PrometheusSample]] = {}
    for line in data.split(b"\n"):
        for series, samples in WANTED.find(line).items():
            alone.setdefault(series, []).extend(samples)
    assert alone == found
    for before in PAGES:  # whatever stood where on the page before, what is found stands on this one
        WANTED.find(before, places := SeriesPlaces())
        for series, again in (places.again(data) or {}).items():
            left = list(found[series])
            for sample in again:
                left.remove(sample)
    return "ok" + outcome


def test_pages_whose_numbers_alone_change_are_read_as_if_searched() -> None:
    rng = random.Random(3)
    for before in PAGES:
        WANTED.find(before, places := SeriesPlaces())
        for _ in range(20):
            page = re.sub(
                rb"(?m)^([^#\n].* )\S+$", lambda line: line[1] + repr(rng.choice((0.0, 1e9, 123456.5)) * rng.random()).encode(), before
            )
            assert WANTED.find(page, places) == WANTED.find(page)


@pytest.mark.parametrize("path", METRICS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    page(path.read_bytes())


def test_pages_are_read_line_by_line_or_refused(record_property: Any) -> None:
    record_property("figure", METRICS.run(page, 500))


def written(rng: random.Random) -> bytes:
    """A page as the exposition format has it, and behind a line of ours what it says."""
    letters = 'ab"\\\n{}=, é#'
    samples = []
    for _ in range(rng.randrange(8)):
        labels = {
            rng.choice(("a", "le", "_x", "model_name")): "".join(rng.choice(letters) for _ in range(rng.randrange(6)))
            for _ in range(rng.randrange(3))
        }
        samples.append((rng.choice(("m", "m_total", "m_bucket", "other")), labels, rng.choice((0.0, 1.5, -2.0, 1e300, 12345678.0))))
    lines = []
    for name, labels, value in samples:
        escaped = [f'{k}="{v.translate(ESCAPES)}"' for k, v in labels.items()]
        gap = rng.choice(("", " "))
        block = "{" + f",{gap}".join(escaped) + rng.choice(("", "," if escaped else "")) + "}" if escaped or rng.random() < 0.3 else ""
        lines += [f"# TYPE {name} gauge", f"{name}{block} {value!r}{rng.choice(('', ' 1700000000000'))}"]
    return "\n".join([*lines, "#" + json.dumps(samples)]).encode()


ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def round_trip(data: bytes) -> str:
    text, _, said = data.rpartition(b"\n#")
    try:
        samples = json.loads(said)
    except ValueError:
        return "damaged"
    found = WantedSeries(["m", "m_total", "other"]).find(text)
    for name in ("m", "m_total", "other"):
        assert found.get(name, []) == [PrometheusSample(labels, value) for written_name, labels, value in samples if written_name == name]
    return "ok"


def test_what_was_written_is_read() -> None:
    rng = random.Random(9)
    for _ in range(500):
        assert round_trip(b"\n" + written(rng)) == "ok"
