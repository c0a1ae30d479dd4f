from pathlib import Path

import msgspec
import pytest

from backends.dialects import DIALECTS
from backends.signals import COUNTERS, START_JITTER_S, Signals, SignalSource, SignalTable, restarted, total

TOO_MANY = b'{"loads":[' + b"{}," * 1000 + b"{}]}"
RECORDED = Path(__file__).parents[2] / "wire" / "engine_metrics"


def read(dialect: str, file: str, *swaps: tuple[bytes, bytes]) -> Signals:
    page = (RECORDED / file).read_bytes()
    for old, new in swaps:
        assert old in page
        page = page.replace(old, new)
    reader = DIALECTS[dialect].read_signals
    assert reader is not None
    return reader(page, 7.0)


def test_what_vllm_says() -> None:
    assert read("vllm", "vllm-0.32.0.txt") == Signals(
        read_at=7.0,
        running=0,
        waiting=0,
        kv_usage=0.0,
        kv_capacity_tokens=16384,  # 512 blocks of 32; the engine's own kv_cache_size_tokens says the same
        block_size=32,
        prefix_queries=45952,
        prefix_hits=3840,
        prefill_tokens=42112,
        generated_tokens=14100,
        preemptions=0,
        asleep=False,
        started_unix=1795225275.51,
        loras=(),  # of four lines the one with the newest time stamp counts
    )


def test_what_sglang_says() -> None:
    found = read("sglang", "sglang-0.5.23-loads.json")
    assert (found.running, found.waiting, found.waiting_uncached_tokens, found.kv_usage) == (0, 0, 0, 0.0)
    assert (found.kv_capacity_tokens, found.prefill_tokens, found.prefill_busy_s) == (16384, 250, 0.075036)
    assert found.missing == ()


def test_what_llamacpp_says() -> None:
    found = read("llamacpp", "llama-server.txt")
    assert (found.running, found.waiting, found.prefix_hits, found.prefill_tokens, found.prefill_busy_s) == (0, 0, 526, 164, 0.74737)
    assert found.kv_usage is None
    assert found.missing == ()


def test_what_trtllm_is_documented_to_say() -> None:
    assert read("trtllm", "trtllm-documented.txt") == Signals(
        read_at=7.0,
        running=3,
        waiting=2,
        kv_usage=0.25,
        kv_capacity_tokens=12800,
        block_size=32,
        prefix_queries=9000,
        prefix_hits=4500,
        generated_tokens=777,
    )


def test_what_tgi_is_documented_to_say() -> None:
    assert read("tgi", "tgi-documented.txt") == Signals(
        read_at=7.0, running=4, waiting=2, kv_usage=0.25, kv_capacity_tokens=16384, generated_tokens=777
    )


def test_what_triton_is_documented_to_say() -> None:
    behind_trtllm = Signals(read_at=7.0, running=3, waiting=2, kv_usage=0.25, kv_capacity_tokens=25600, block_size=64)
    assert read("triton", "triton-trtllm-documented.txt") == behind_trtllm
    assert read("triton", "triton-vllm-documented.txt") == Signals(
        read_at=7.0, running=3, waiting=2, kv_usage=0.25, preemptions=1, generated_tokens=777
    )


def test_what_dynamo_is_documented_to_say() -> None:
    assert read("dynamo", "dynamo-documented.txt") == Signals(
        read_at=7.0, running=3, waiting=7, waiting_uncached_tokens=1500, block_size=16, generated_tokens=777
    )


VLLM = {"running": "vllm:num_requests_running{", "waiting": "vllm:num_requests_waiting{"}
PAGES = {
    ("vllm", "vllm-0.32.0.txt"): VLLM | {"kv_usage": "vllm:kv_cache_usage_perc{"},
    ("llamacpp", "llama-server.txt"): {"running": "llamacpp:requests_processing", "waiting": "llamacpp:requests_deferred"},
    ("sglang", "sglang-0.5.23-loads.json"): {
        "running": '"num_running_reqs"',
        "waiting": '"num_waiting_reqs"',
        "kv_usage": '"num_used_tokens"',
    },
    ("trtllm", "trtllm-documented.txt"): {
        "running": "trtllm_num_requests_running{",
        "waiting": "trtllm_num_requests_waiting{",
        "kv_usage": "trtllm_kv_cache_utilization{",
    },
    ("tgi", "tgi-documented.txt"): {"running": "tgi_batch_current_size", "waiting": "tgi_queue_size"},
    ("triton", "triton-trtllm-documented.txt"): {
        "running": 'type="scheduled"',
        "waiting": 'type="waiting"',
        "kv_usage": 'type="fraction"',
    },
    ("triton", "triton-vllm-documented.txt"): VLLM | {"kv_usage": "vllm:gpu_cache_usage_perc{"},
    ("dynamo", "dynamo-documented.txt"): {
        "running": "dynamo_frontend_inflight_requests{",
        "waiting": "dynamo_frontend_queued_requests{",
    },
}
"""How each required signal stands on each page."""

CASES = [(dialect, file, signal, text) for (dialect, file), required in PAGES.items() for signal, text in required.items()]


@pytest.mark.req("ROUTERS-6")
@pytest.mark.parametrize(("dialect", "file", "signal", "text"), CASES, ids=[f"{f}-{s}" for _, f, s, _ in CASES])
def test_a_required_series_dropped_or_renamed_is_unknown_and_listed(dialect: str, file: str, signal: str, text: str) -> None:
    assert read(dialect, file).missing == ()
    renamed = text[:2] + "x_" + text[2:]
    found = read(dialect, file, (text.encode(), renamed.encode()))
    assert getattr(found, signal) is None
    assert signal in found.missing
    assert found.missing == ((signal,) if (dialect, signal) != ("dynamo", "waiting") else ("running", "waiting"))
    if not file.endswith(".json"):
        reader = DIALECTS[dialect].read_signals
        assert reader is not None
        page = b"\n".join(line for line in (RECORDED / file).read_bytes().split(b"\n") if text.encode() not in line)
        assert signal in reader(page, 7.0).missing


@pytest.mark.req("ROUTERS-6")
def test_every_required_signal_of_every_dialect_is_tried() -> None:
    for name, dialect in DIALECTS.items():
        if dialect.read_signals is not None:
            required = set(dialect.read_signals(b'{"loads":[]}' if name == "sglang" else b"", 0.0).missing)
            pages = [set(page) for (page_of, _), page in PAGES.items() if page_of == name]
            assert pages
            assert all(page == required for page in pages), name


@pytest.mark.req("ROUTERS-6")
def test_a_share_of_nothing_is_unknown() -> None:
    assert read("tgi", "tgi-documented.txt", (b"tgi_batch_max_total_tokens 16384", b"tgi_batch_max_total_tokens 0")).kv_usage is None


@pytest.mark.req("ROUTERS-6")
def test_a_series_that_is_gone_is_unknown_and_never_zero() -> None:
    found = read(
        "vllm", "vllm-0.32.0.txt", (b"vllm:num_requests_waiting{", b"vllm:num_requests_delayed{"), (b"vllm:kv_cache_usage_perc", b"vllm:kv")
    )
    assert (found.waiting, found.kv_usage, found.running) == (None, None, 0)
    assert found.missing == ("waiting", "kv_usage")


@pytest.mark.req("ROUTERS-6")
def test_an_older_name_is_as_good() -> None:
    assert read("vllm", "vllm-0.32.0.txt", (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")).kv_usage == 0.0


def test_ranks_are_added_up() -> None:
    page = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    page += b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.25\nvllm:num_requests_waiting 0\n'
    reader = DIALECTS["vllm"].read_signals
    assert reader is not None
    found = reader(page, 0.0)
    assert (found.running, found.kv_usage, found.missing) == (7, 0.375, ())


def test_an_engine_asleep_says_so() -> None:
    awake, asleep = b'sleep_state="awake"} 1.0', b'sleep_state="awake"} 0.0'
    assert read("vllm", "vllm-0.32.0.txt", (awake, asleep)).asleep is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"loads":3}',
        b'{"loads":[{"num_running_reqs":"x"}]}',
        b'{"loads":' + b"[" * 5000,
        b'{"loads":[' + b"{}," * 1000 + b"{}]}",
    ],
)
def test_what_is_no_load_is_an_error_and_not_a_load_of_zero(body: bytes) -> None:
    reader = DIALECTS["sglang"].read_signals
    assert reader is not None
    with pytest.raises(ValueError, match="no list of loads"):
        reader(body, 0.0)


def test_a_load_without_its_numbers_is_unknown() -> None:
    reader = DIALECTS["sglang"].read_signals
    assert reader is not None
    assert reader(b'{"loads":[{}]}', 0.0) == Signals(read_at=0.0, missing=("running", "waiting", "kv_usage"))


def test_a_table_names_signals_that_exist() -> None:
    with pytest.raises(ValueError, match="no such signals: runing"):
        SignalTable({"runing": SignalSource(("a",), total())})


BEFORE = Signals(
    read_at=1.0,
    running=3,
    started_unix=1000.0,
    prefix_queries=50,
    prefix_hits=5,
    prefill_tokens=40,
    generated_tokens=9,
    prefill_busy_s=0.5,
    preemptions=2,
)


@pytest.mark.req("R43")
@pytest.mark.parametrize("counter", COUNTERS)
def test_a_counter_that_fell_is_a_restart(counter: str) -> None:
    assert restarted(BEFORE, msgspec.structs.replace(BEFORE, **{counter: 0}))
    assert not restarted(BEFORE, msgspec.structs.replace(BEFORE, **{counter: 60}))


@pytest.mark.req("R43")
def test_another_start_time_is_a_restart_and_a_corrected_clock_is_none() -> None:
    for moved, expected in ((0.0, False), (START_JITTER_S, False), (-START_JITTER_S, False), (1.1, True), (-20.0, True)):
        assert restarted(BEFORE, msgspec.structs.replace(BEFORE, started_unix=1000.0 + moved)) is expected


def test_what_rises_and_falls_by_itself_or_is_unknown_is_no_restart() -> None:
    assert not restarted(BEFORE, msgspec.structs.replace(BEFORE, running=0))
    assert not restarted(BEFORE, Signals(read_at=2.0, missing=("running",)))
    assert not restarted(Signals(read_at=0.0), BEFORE)


@pytest.mark.req("ROUTERS-6")
@pytest.mark.parametrize("value", ["1.7e308", "-5", "1e17"])
def test_numbers_that_no_engine_counts_are_unknown_and_end_nothing(value: str) -> None:
    page = b"".join(b'vllm:num_requests_running{engine="%d"} %b\n' % (n, value.encode()) for n in range(2))
    reader = DIALECTS["vllm"].read_signals
    assert reader is not None
    signals = reader(page + b"vllm:num_requests_waiting 3\n", 1.0)
    assert (signals.running, signals.waiting) == (None, 3)
    assert "running" in signals.missing
