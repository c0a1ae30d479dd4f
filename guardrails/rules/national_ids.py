"""National ids by country: how they are written, their check (`python-stdnum`), and where a word has to say what a number is. Pure.

An id of digits alone looks like any order number, and one check digit lets every tenth or eleventh number pass. So such an id counts only
with a word of its country in front, within `CONTEXT_CHARS`; one with letters in fixed places, or with a punctuation of its own, stands for
itself.
"""

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

import msgspec

CONTEXT_CHARS: Final = 40
"""A word that says what a number is begins at most this far in front of it."""


class NationalId(msgspec.Struct, frozen=True):
    """One kind of id."""

    country: str
    """ISO 3166 code."""
    module: str
    """The module of python-stdnum whose `is_valid` checks it; empty where the form is all that there is to check."""
    form: str
    """How it is written; at most 24 characters."""
    words: str = ""
    """Words one of which stands in front; empty for an id that stands for itself. In lower case."""


_ANY: Final = r"(?:tax|national|personal|identity|identification|citizen|social security|insurance)[ -]?(?:id|number|no|code|card)?"

NATIONAL_IDS: Final = (
    NationalId("US", "us.ssn", r"\d{3}-\d{2}-\d{4}"),
    NationalId("US", "us.ssn", r"\d{3} \d{2} \d{4}|\d{9}", r"\bssn\b|social security"),
    NationalId("US", "us.itin", r"9\d{2}-\d{2}-\d{4}"),
    NationalId(
        "GB",
        "",  # the prefixes that HMRC allots
        r"(?:[AC-EHJ-MOPRSWXY][A-CEGHJ-NPR-TW-Z]|B[ACEHJ-MPR-TW-Z]|G[ACEGHJ-NPR-TW-Z]|[NT][A-CEGHJ-MPR-SW-Z]|Z[A-CEGHJ-NPR-SW-Y])"
        r" ?\d{2} ?\d{2} ?\d{2} ?[A-D]",
    ),
    NationalId("GB", "gb.nhs", r"\d{3}[ -]?\d{3}[ -]?\d{4}", r"\bnhs\b"),
    NationalId("GB", "gb.utr", r"\d{10}", r"\butr\b|taxpayer"),
    NationalId("DE", "de.idnr", r"\d{2} ?\d{3} ?\d{3} ?\d{3}", r"steuer|\bidnr\b|\btin\b|" + _ANY),
    NationalId(
        "FR", "fr.nir", r"[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", r"s[ée]curit[ée] sociale|\bnir\b|\binsee\b|" + _ANY
    ),
    NationalId("ES", "es.dni", r"\d{8}-?[A-Z]", r"\bdni\b|\bnif\b|documento|" + _ANY),
    NationalId("ES", "es.nie", r"[XYZ]-?\d{7}-?[A-Z]", r"\bnie\b|\bnif\b|extranjer|" + _ANY),
    NationalId("IT", "it.codicefiscale", r"[A-Z]{6}\d{2}[ABCDEHLMPRST]\d{2}[A-Z]\d{3}[A-Z]"),
    NationalId("NL", "nl.bsn", r"\d{3}[. ]?\d{3}[. ]?\d{3}|\d{4}[. ]?\d{2}[. ]?\d{3}", r"\bbsn\b|burgerservice|sofinummer|" + _ANY),
    NationalId("BE", "be.nn", r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}"),
    NationalId("BE", "be.nn", r"\d{11}", r"rijksregister|registre national|" + _ANY),
    NationalId("PL", "pl.pesel", r"\d{11}", r"pesel|" + _ANY),
    NationalId("PT", "pt.nif", r"\d{9}", r"\bnif\b|contribuinte|" + _ANY),
    NationalId("PT", "pt.cc", r"\d{8} ?\d ?[A-Z0-9]{2}\d", r"cart[ãa]o de cidad|" + _ANY),
    NationalId("SE", "se.personnummer", r"(?:\d{2})?\d{6}[-+]\d{4}"),
    NationalId("SE", "se.personnummer", r"(?:\d{2})?\d{10}", r"person(?:nummer|nr)|" + _ANY),
    NationalId("NO", "no.fodselsnummer", r"\d{6} ?\d{5}", r"f[øo]dsels|person(?:nummer|nr)|" + _ANY),
    NationalId("DK", "dk.cpr", r"\d{6}-?\d{4}", r"\bcpr\b|person(?:nummer|nr)|" + _ANY),
    NationalId("FI", "fi.hetu", r"\d{6}[-+ABCDEFUVWXY]\d{3}[0-9A-FHJ-NPR-Y]"),
    NationalId("CH", "ch.ssn", r"756\.\d{4}\.\d{4}\.\d{2}"),
    NationalId("CH", "ch.ssn", r"756\d{10}", r"\bahv\b|\bavs\b|" + _ANY),
    NationalId("AT", "at.vnr", r"\d{4} ?\d{6}", r"sozialversicherung|\bsvnr\b|" + _ANY),
    NationalId("IE", "ie.pps", r"\d{7}[A-W][A-IW]?", r"\bpps|" + _ANY),
    NationalId("CZ", "cz.rc", r"\d{6}/\d{3,4}"),
    NationalId("RO", "ro.cnp", r"\d{13}", r"\bcnp\b|" + _ANY),
    NationalId("BG", "bg.egn", r"\d{10}", r"\begn\b|" + _ANY),
    NationalId("GR", "gr.amka", r"\d{11}", r"\bamka\b|" + _ANY),
    NationalId("HR", "hr.oib", r"\d{11}", r"\boib\b|" + _ANY),
    NationalId("LT", "lt.asmens", r"\d{11}", r"asmens|" + _ANY),
    NationalId("EE", "ee.ik", r"\d{11}", r"isikukood|" + _ANY),
    NationalId("TR", "tr.tckimlik", r"\d{11}", r"kimlik|\btckn\b|" + _ANY),
    NationalId("IL", "il.idnr", r"\d{9}", r"teudat|" + _ANY),
    NationalId("ZA", "za.idnr", r"\d{13}", r"\bsa id\b|" + _ANY),
    NationalId("BR", "br.cpf", r"\d{3}\.\d{3}\.\d{3}-\d{2}"),
    NationalId("BR", "br.cpf", r"\d{11}", r"\bcpf\b|" + _ANY),
    NationalId("AR", "ar.cuit", r"\d{2}-\d{8}-\d"),
    NationalId("CL", "cl.rut", r"\d{1,2}\.\d{3}\.\d{3}-[0-9Kk]"),
    NationalId("CL", "cl.rut", r"\d{7,8}-[0-9Kk]", r"\brut\b|\brun\b|" + _ANY),
    NationalId("MX", "mx.curp", r"[A-Z]{4}\d{6}[HM][A-Z]{5}[0-9A-Z]\d"),
    NationalId("CA", "ca.sin", r"\d{3}[ -]?\d{3}[ -]?\d{3}", r"\bsin\b|social insurance"),
    NationalId("AU", "au.tfn", r"\d{3} ?\d{3} ?\d{3}", r"\btfn\b|tax file"),
    NationalId("IN", "in_.aadhaar", r"\d{4} ?\d{4} ?\d{4}", r"aadhaar|aadhar|\buidai\b|" + _ANY),
    NationalId("IN", "in_.pan", r"[A-Z]{3}[ABCEFGHJLPT][A-Z]\d{4}[A-Z]", r"\bpan\b|permanent account"),
    NationalId("CN", "cn.ric", r"\d{17}[0-9X]"),
    NationalId("KR", "kr.rrn", r"\d{6}-[1-8]\d{6}"),
    NationalId("MY", "my.nric", r"\d{6}-\d{2}-\d{4}"),
    NationalId("TH", "th.pin", r"\d-\d{4}-\d{5}-\d{2}-\d"),
)
"""All that can be found, 38 countries."""

COUNTRIES: Final = frozenset(entry.country for entry in NATIONAL_IDS)


class ReadyId(msgspec.Struct, frozen=True, gc=False):
    """A kind of id with its expressions compiled and its check loaded."""

    entry: NationalId
    form: re.Pattern[str]
    words: re.Pattern[str] | None
    valid: Callable[[str], bool]


def ready_ids(countries: Iterable[str]) -> list[ReadyId]:
    """The ids of some countries; a country without any adds none."""
    chosen = set(countries)
    return [
        ReadyId(
            entry,
            re.compile(rf"(?<![\w./-])(?:{entry.form})(?![\w/-]|\.\d)"),
            re.compile(entry.words, re.IGNORECASE) if entry.words else None,
            import_module(f"stdnum.{entry.module}").is_valid if entry.module else bool,
        )
        for entry in NATIONAL_IDS
        if entry.country in chosen
    ]
