"""Writes the tokenizer and chat template inside a GGUF as files of their own; runs in an engine's environment, alone.

python gguf_tokenizer.py MODEL.gguf FOLDER
"""

import sys
from pathlib import Path

from transformers import AutoTokenizer

if __name__ == "__main__":
    source = Path(sys.argv[1])
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(sys.argv[2])
