from pathlib import Path

import msgspec
import pytest

from backends.dialects import DIALECTS
from backends.signals import COUNTERS, START_JITTER_S, Signals, SignalTable, Source, restarted, total

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
    "body", [b"", b"<html>", b"[]", b'{"loads":3}', b'{"loads":[{"num_running_reqs":"x"}]}', b'{"loads":' + b"[" * 5000]
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
        SignalTable({"runing": Source(("a",), total())})


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
