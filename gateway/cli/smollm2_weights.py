"""Converts SmolLM2's GGUF to bf16 safetensors, which vLLM serves; a script for an engine's environment, without Tidegate.

    python smollm2_weights.py MODEL.gguf FOLDER     about 20 s and 260 MB; FOLDER appears complete or not at all

transformers reads the quantised file into plain tensors. Its own `save_pretrained` refuses models that were quantised, so this
script writes the tensors and removes the quantisation from the configuration.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(source: Path, folder: Path) -> None:
    """Write model, configuration and tokenizer with its chat template."""
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    tokenizer.save_pretrained(partial)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.dtype = torch.bfloat16
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(partial)
    model.generation_config.save_pretrained(partial)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
