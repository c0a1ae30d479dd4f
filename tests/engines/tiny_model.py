"""Writes a tiny random model with tokenizer, chat template and three LoRA adapters; runs in an engine's environment, alone.

    python tiny_model.py FOLDER     makes FOLDER/model and FOLDER/lora-a, lora-b, lora-c in about a second, nothing downloaded

FOLDER/judge/model is the same model with a random head that gives a text one score, as rerankers do.

Llama with 2 layers, 2,048 tokens (byte-level BPE trained on the standard library's sources) and 32,768 positions. Weights come
from a fixed seed, so the same request gets the same tokens on every machine with the same kernels.
"""

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, POSITIONS, RANK = 128, 256, 2, 4, 2, 32, 2048, 32768, 8
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGIT_STD = 0.15
"""Of the output matrix, which is not tied to the embeddings: tied random ones answer with one token for ever."""


def write_tokenizer(folder: Path) -> int:
    """A tokenizer with a chat template; returns its vocabulary's size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = sorted(str(path) for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(texts, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token="<|im_end|>",
        bos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        model_max_length=POSITIONS,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer.get_vocab_size()


def write_model(folder: Path) -> None:
    """Tokenizer, configuration and random weights."""
    folder.mkdir(parents=True)
    vocab = write_tokenizer(folder)
    write_json(
        folder / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=vocab,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    write_json(folder / "generation_config.json", bos_token_id=0, eos_token_id=[2], pad_token_id=0)
    dice = torch.Generator().manual_seed(7)
    weights = {
        "model.embed_tokens.weight": noise(dice, vocab, HIDDEN, std=0.5),
        "lm_head.weight": noise(dice, vocab, HIDDEN, std=LOGIT_STD),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    for n in range(LAYERS):
        layer = f"model.layers.{n}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        shapes = {"self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN)}
        shapes |= {"self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM)}
        shapes |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
        for part, (rows, columns) in shapes.items():
            weights[f"{layer}{part}.weight"] = noise(dice, rows, columns)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_judge(folder: Path, model: Path) -> None:
    """The model as a classifier with one class."""
    shutil.copytree(model, folder)
    fields = json.loads((model / "config.json").read_text())
    write_json(folder / "config.json", **fields | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1})
    weights = load_file(model / "model.safetensors")
    del weights["lm_head.weight"]
    weights["score.weight"] = noise(torch.Generator().manual_seed(11), 1, HIDDEN)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_adapter(folder: Path, seed: int) -> None:
    """A random LoRA adapter in PEFT's layout, strong enough to change what the model says."""
    folder.mkdir()
    dice = torch.Generator().manual_seed(seed)
    weights = {}
    for n in range(LAYERS):
        for part, rows in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            name = f"base_model.model.model.layers.{n}.self_attn.{part}."
            weights[name + "lora_A.weight"] = noise(dice, RANK, HIDDEN, std=0.3).float()
            weights[name + "lora_B.weight"] = noise(dice, rows, RANK, std=0.3).float()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(
        folder / "adapter_config.json",
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path="model",
        r=RANK,
        lora_alpha=16,
        lora_dropout=0.0,
        bias="none",
        target_modules=["q_proj", "v_proj"],
        fan_in_fan_out=False,
        inference_mode=True,
        modules_to_save=None,
        init_lora_weights=True,
    )


def noise(dice: torch.Generator, *shape: int, std: float = 0.08) -> torch.Tensor:
    return (torch.randn(*shape, generator=dice) * std).to(torch.bfloat16)


def write_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    home = Path(sys.argv[1])
    write_model(home / "model")
    write_judge(home / "judge" / "model", home / "model")
    for number, name in enumerate(("lora-a", "lora-b", "lora-c"), 1):
        write_adapter(home / name, seed=number)
