"""What `tidegate engine size` computes beside what a real vLLM reports when it has started: KV blocks and capacity.

    python -m bench.launch.sizes --vllm /path/to/vllm

Small random models of every attention kind that the formula knows, dummy weights, on the CPU with 1 GiB of KV memory. On a GPU
the memory left for KV also depends on what vLLM measures while starting; that part is an assumption here and not compared.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from backends.launch.engine_facts import METRICS, read_facts
from backends.launch.model_shape import read_shape
from backends.launch.sizing import GIB, GpuLayout, size
from backends.prometheus_text import WantedSeries
from bench.results_file import Row, machine, refresh, write_rows

READY_WITHIN_S: Final = 240.0
LLAMA: Final = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6}
SIZES: Final = {"vocab_size": 2048, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2}

MODELS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "grouped-query, 2 layers": (
        32,
        {
            **LLAMA,
            **SIZES,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    ),
    "multi-head, 5 layers, head 64": (
        64,
        {
            **LLAMA,
            **SIZES,
            "hidden_size": 192,
            "intermediate_size": 256,
            "num_hidden_layers": 5,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
        },
    ),
    "one KV head, 7 layers, head 128": (
        96,
        {
            **LLAMA,
            **SIZES,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 128,
        },
    ),
    "latent (MLA), 3 layers": (
        32,
        {
            **SIZES,
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
            "scoring_func": "softmax",
            "topk_method": "greedy",
            "norm_topk_prob": False,
        },
    ),
}
"""By name: block size and config.json."""


def measured(vllm: str, block: int, config: dict[str, Any], port: int) -> tuple[int, int, int] | None:
    """Blocks, their size and the capacity in tokens that vLLM reports; None when it does not start (its log is printed)."""
    with tempfile.TemporaryDirectory(prefix="tidegate-sizes-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        command = [vllm, "serve", folder, "--host", "127.0.0.1", "--port", str(port), "--block-size", str(block), "--load-format", "dummy"]
        command += ["--skip-tokenizer-init", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "4"]
        own = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
        }
        log = Path(folder) / "log"
        with log.open("wb") as written:
            process = subprocess.Popen(command, env={**os.environ, **own}, stdout=written, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + READY_WITHIN_S
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{METRICS}", timeout=2) as reply:
                        page = reply.read()
                    labels = WantedSeries(("vllm:cache_config_info",)).find(page)["vllm:cache_config_info"][0].labels
                    facts = read_facts("vllm", {METRICS: page})
                    return facts.blocks or 0, facts.block_size or 0, int(labels["kv_cache_size_tokens"])
                except (OSError, KeyError):
                    time.sleep(0.5)
            print(*log.read_text(errors="replace").splitlines()[-15:], sep="\n")
            return None
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    """Start vLLM once per model, print and write the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm", required=True, help="the vllm program")
    parser.add_argument("--port", type=int, default=8493)
    given = parser.parse_args()
    version = subprocess.run([given.vllm, "--version"], capture_output=True, text=True, check=False).stdout.split()[-1:]
    rows, lines = [], ["| model | block | KV blocks computed | reported | capacity computed | reported |", "|---|---|---|---|---|---|"]
    for name, (asked, config) in MODELS.items():
        reported = measured(given.vllm, asked, config, given.port)
        if reported is None:
            continue
        # computed with the block size the engine took: CPU kernels for latent attention have one of their own
        blocks, block, tokens = reported
        computed = size(read_shape(config), GpuLayout(memory_bytes=0, kv_bytes=GIB, block=block), 2048)
        for subject, (count, fits) in {"tidegate": (computed.blocks, computed.capacity_tokens), "vllm": (blocks, tokens)}.items():
            rows.append(Row(metric=f"kv_blocks:{name}", subject=subject, value=count, unit="blocks", n=1))
            rows.append(Row(metric=f"kv_tokens:{name}", subject=subject, value=fits, unit="tokens", n=1))
        lines.append(f"| {name} | {block} | {computed.blocks:,} | {blocks:,} | {computed.capacity_tokens:,} | {tokens:,} |")
        print(lines[-1], flush=True)
    write_rows("sizes", rows)
    lines += [
        "",
        "vLLM counts capacity in sequences of the longest length; where blocks do not divide it, part of each last block is lost.",
    ]
    table = "\n".join(lines)
    refresh("sizes", f"`python -m bench.launch.sizes --vllm …`, vLLM {' '.join(version)}, {machine()}; 1 GiB of KV memory.\n\n{table}")


if __name__ == "__main__":
    main()
