"""What processes use, read from /proc."""

import os
import sys
import time
from pathlib import Path

import pytest

from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.processes import PROCESS_COUNTERS, PROCESS_GAUGES, process_counts, process_rows, use_of, uses
from gateway.telemetry.snapshot import MetricsSnapshot

STAT = "42 (odd) name (x)) S 1 42 42 0 -1 4194304 9 0 0 0 250 150 0 0 20 0 7 0 6000 123456 1000 18446744073709551615 1 1 0"
LIMITS = "Limit                     Soft Limit           Hard Limit\nMax open files            1024                 4096   files\n"


def written(proc: Path, limits: str = LIMITS) -> Path:
    home = proc / "42"
    (home / "fd").mkdir(parents=True)
    (home / "stat").write_text(STAT)
    (home / "limits").write_text(limits)
    (proc / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    return proc


def test_a_program_may_have_any_name(tmp_path: Path) -> None:
    use = use_of(42, written(tmp_path))
    assert use is not None
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert (use.cpu_s, use.threads, use.max_fds) == (400 / ticks, 7, 1024)
    assert use.resident_bytes == 1000 * page
    assert use.started_unix == 1_700_000_000 + 6000 / ticks


def test_what_is_not_known_has_no_sample(tmp_path: Path) -> None:
    proc = written(tmp_path, limits=LIMITS.replace("1024", "unlimited"))
    (proc / "42" / "fd").rmdir()
    found = uses([("worker-0", 42), ("gone", 43), ("worker-0", 43)], proc)
    assert list(found) == ["worker-0"]
    rows = dict(process_rows(found))
    assert set(rows) == set(PROCESS_GAUGES) and set(dict(process_counts(found))) == set(PROCESS_COUNTERS)
    assert rows["tidegate_process_open_fds"] == rows["tidegate_process_max_fds"] == []
    assert use_of(42, tmp_path / "no-proc") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process() -> None:
    with open(os.devnull):
        use = use_of(os.getpid())
        assert use is not None and use.open_fds is not None
        assert use.open_fds >= 4
    assert use.cpu_s > 0 and use.resident_bytes > 10_000_000
    assert 0 <= time.time() - use.started_unix < 86_400
    text, _ = render(Scrape(MetricsSnapshot(), (), None, 1, "0", processes={"admin": use}))
    assert b'tidegate_process_cpu_seconds_total{process="admin"}' in text
    assert b'tidegate_process_start_time_seconds{process="admin"} 1.' in text
