"""Azure's LLM inference traces: CSV of arrival, prompt and answer lengths; no prefixes, no tenants.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

Each file counts as a service, and so as a tenant. Source: Azure/AzurePublicDataset, AzureLLMInferenceTrace_*.csv.
"""

import datetime as dt
from pathlib import Path

from routing.simulation.traces.lines import lines, wrong
from routing.simulation.turns import BLOCK_TOKENS, Dice, TraceRequest, Workload, fresh_chain


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return head.lstrip(b"\xef\xbb\xbf").upper().startswith(b"TIMESTAMP,CONTEXTTOKENS")


def read(files: list[Path], dice: Dice) -> Workload:
    """All requests; the first of all arrives at 0. Raises TraceError."""
    requests: list[tuple[float, str, int, int]] = []
    for file in files:
        name = file.name.split(".")[0]
        for number, line in lines(file):
            if number == 1:
                continue
            parts = line.decode(errors="replace").split(",")
            try:
                when = parts[0]
                prompt = int(parts[1])
                output = int(parts[2])
                # 100 ns are one digit more than datetime reads
                moment = dt.datetime.fromisoformat(when[:26]).replace(tzinfo=dt.UTC).timestamp()
            except (ValueError, IndexError):
                raise wrong(file, number, "is not TIMESTAMP,ContextTokens,GeneratedTokens") from None
            if prompt < 1 or output < 0:
                raise wrong(file, number, f"cannot have {prompt} and {output} tokens")
            requests.append((moment, name, prompt, max(1, output)))
    requests.sort()
    start = requests[0][0] if requests else 0.0
    turns = [TraceRequest(t - start, p, o, fresh_chain(p, BLOCK_TOKENS, 11, i), tenant) for i, (t, tenant, p, o) in enumerate(requests)]
    return Workload("azure", turns, notes=["no prefixes are known: no two requests share one"])
