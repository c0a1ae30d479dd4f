"""The rules that join the gateway's metrics with those of GPUs, as docs/reference/metrics.md has them: promtool runs them on recorded
series, and every family of ours that they name is one that the gateway has."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway.telemetry.exposition import describe
from tests.docs.pages import ROOT, read_page

PAGE: Final = ROOT / "docs" / "reference" / "metrics.md"
FILE: Final = "tidegate-gpus.yml"
RULES: Final = next(fence.text for fence in read_page(PAGE).fences if fence.file == FILE)

GPUS: Final = {  # two engines with two GPUs each
    "DCGM_FI_DEV_GPU_UTIL": (90, 70, 40, 40),
    "DCGM_FI_DEV_FB_USED": (60_000, 60_000, 20_000, 20_000),
    "DCGM_FI_DEV_FB_FREE": (20_000, 20_000, 60_000, 60_000),
    "DCGM_FI_DEV_POWER_USAGE": (600, 400, 200, 200),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.5, 0.3, 0.1, 0.1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (80, 60, 20, 20),
}
LABELS: Final = '{backend="b1", gpu="0"}', '{backend="b1", gpu="1"}', '{backend="b2", gpu="0"}', '{backend="b2", gpu="1"}'


def steady(series: str, value: float) -> dict[str, str]:
    return {"series": series, "values": f"{value}+0x10"}


def rising(series: str, each_minute: float) -> dict[str, str]:
    return {"series": series, "values": f"0+{each_minute}x10"}


def recorded() -> list[dict[str, str]]:
    """Ten minutes of two gateways, two backends of one pool, and a GPU of somebody else."""
    series = [steady(name + labels, value) for name, values in GPUS.items() for labels, value in zip(LABELS, values, strict=True)]
    series.append(steady('DCGM_FI_DEV_GPU_UTIL{backend="stranger", gpu="0"}', 99))
    for gateway in ("g1", "g2"):
        for backend, up, dollars in (("b1", 1, 12), ("b2", 0, 6)):
            labels = f'{{instance="{gateway}", pool="chat", backend="{backend}"}}'
            series.append(steady(f"tidegate_backend_up{labels}", up))
            series.append(steady(f"tidegate_backend_usd_per_hour{labels}", dollars))
        for token_type, each_minute in (("prompt", 24_000), ("completion", 6_000), ("cached", 9_000)):
            labels = f'instance="{gateway}", pool="chat", backend="b1", type="{token_type}"'
            series.append(rising(f"tidegate_backend_tokens_total{{{labels}}}", each_minute))
            labels = f'instance="{gateway}", model="large", tenant="acme", type="{token_type}"'
            series.append(rising(f"tidegate_tokens_total{{{labels}}}", each_minute))
        series.append(rising(f'tidegate_cost_usd_total{{instance="{gateway}", model="large", tenant="acme"}}', 0.9375))
    return series


OF_BACKENDS: Final = {
    "tidegate:gpu_utilisation:ratio": (0.8, 0.4),
    "tidegate:gpu_memory_used:ratio": (0.75, 0.25),
    "tidegate:gpu_power:watts": (1000, 400),
    "tidegate:gpu_tensor_active:ratio": (0.4, 0.1),
    "tidegate:gpu_memory_copy:ratio": (0.7, 0.2),
    "tidegate:backend_tokens:rate5m": (1000,),
    "tidegate:token_energy:joules": (1,),
}


def expected() -> list[dict[str, Any]]:
    cases = []
    for name, values in OF_BACKENDS.items():
        samples = [{"labels": f'{name}{{backend="b{at}", pool="chat"}}', "value": value} for at, value in enumerate(values, 1)]
        cases.append({"expr": name, "eval_time": "10m", "exp_samples": samples})
    # 18 dollars an hour buy 1,000 tokens a second, and tenants pay 1/32 dollar a second for them; all of them exact in binary
    for name, labels, value in (
        ("tidegate:token_engine_cost:usd_per_million", 'pool="chat"', 5),
        ("tidegate:token_list_price:usd_per_million", 'model="large"', 31.25),
    ):
        cases.append({"expr": name, "eval_time": "10m", "exp_samples": [{"labels": f"{name}{{{labels}}}", "value": value}]})
    return cases


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)")
def test_gpus_are_joined_with_backends_and_tokens_have_a_price(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(RULES)
    test = {
        "rule_files": [FILE],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": recorded(), "promql_expr_test": expected()}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    ran = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_rules_name_metrics_that_there_are() -> None:
    named = set(re.findall(r"\btidegate_[a-z0-9_]+", RULES))
    assert named and named <= describe().keys()
