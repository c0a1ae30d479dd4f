"""Personal data: each kind by its check, every check digit changed by one is none, and what only looks like it is none."""

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum import iban, luhn
from stdnum.de import idnr

from guardrails.rules import pii
from guardrails.rules.national_ids import NATIONAL_IDS, NationalId, ready_ids
from guardrails.rules.pii import KINDS, Pii
from guardrails.text import Text

RULE = Pii("pii")


def _found(text: str, rule: Pii = RULE) -> list[tuple[str, str]]:
    return [(f.kind, text[f.begin : f.end]) for f in rule.scan(Text(text))]


@given(st.text("0123456789", min_size=1, max_size=19))
def test_luhn_is_that_of_the_library(digits: str) -> None:
    assert pii.luhn(digits) is bool(luhn.is_valid(digits))


@given(st.sampled_from(["4", "51", "2221", "34", "3528", "6011", "65"]), st.integers(0, 10**15), st.integers(0, 15), st.integers(1, 9))
def test_a_card_is_found_and_with_one_digit_changed_it_is_none(prefix: str, number: int, at: int, by: int) -> None:
    length = 15 if prefix == "34" else 16
    body = (prefix + f"{number:015d}")[: length - 1]
    card = body + luhn.calc_check_digit(body)
    if len(set(card)) < 2:
        return
    assert _found(f"card {card}.") == [("card", card)]
    at %= length
    changed = card[:at] + str((int(card[at]) + by) % 10) + card[at + 1 :]
    assert ("card", changed) not in _found(f"card {changed}.")


@given(st.integers(10**17, 10**18 - 1), st.integers(0, 17), st.integers(1, 9))
def test_an_iban_is_found_and_with_one_digit_changed_it_is_none(number: int, at: int, by: int) -> None:
    account = iban.compact("DE00" + str(number))
    check = f"{98 - int(str(number) + '131400') % 97:02d}"
    written = "DE" + check + account[4:]
    for form in (written, " ".join(written[n : n + 4] for n in range(0, len(written), 4))):
        assert ("iban", form) in _found(f"IBAN: {form} please")
    at += 4
    changed = written[:at] + str((int(written[at]) + by) % 10) + written[at + 1 :]
    assert "iban" not in [kind for kind, _ in _found(f"IBAN: {changed} please")]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("pay with 4111 1111 1111 1111 now", "card", "4111 1111 1111 1111"),
        ("pay with 4111-1111-1111-1111", "card", "4111-1111-1111-1111"),
        ("amex 3782 822463 10005", "card", "3782 822463 10005"),
        ("\uff14\uff11\uff11\uff11 1111 1111 1111", "card", "\uff14\uff11\uff11\uff11 1111 1111 1111"),
        ("my maestro card 6759649826438453", "card", "6759649826438453"),
        ("GB82 WEST 1234 5698 7654 32 is mine", "iban", "GB82 WEST 1234 5698 7654 32"),
        ("call +49 30 901820", "phone", "+49 30 901820"),
        ("(415) 665-1146", "phone", "(415) 665-1146"),
        ("ring me: phone 020 7946 0018", "phone", "020 7946 0018"),
        ("ssn 536-90-4399", "national_id", "536-90-4399"),
        ("Codice: RCCMNL83S18D969H", "national_id", "RCCMNL83S18D969H"),
        ("AHV 756.9217.0769.85", "national_id", "756.9217.0769.85"),
        ("CPF 390.533.447-05", "national_id", "390.533.447-05"),
        ("Steuer-ID 36 574 261 809", "national_id", "36 574 261 809"),
        ("NINO AB123456C", "national_id", "AB123456C"),
        ("write to J.Doe+x@mail.example.co.uk, please", "email", "J.Doe+x@mail.example.co.uk"),
        ("j\u200bdoe@example.org", "email", "j\u200bdoe@example.org"),
        ("from 203.0.113.77:8080", "ip", "203.0.113.77"),
        ("dns 8.8.8.8", "ip", "8.8.8.8"),
        ("at 2001:db8::ff00:42:8329 now", "ip", "2001:db8::ff00:42:8329"),
    ],
)
def test_values(text: str, kind: str, value: str) -> None:
    assert _found(text) == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "order W1234567 of 2024-01-15 10:30:45.123456, 1700000000000 and 1732470000",
        "id 550e8400-e29b-41d4-a716-446655440000",
        "pip install foo==1.2.3.4 and version 10.20.30.40",
        "section 1.2.3.4 of std::vector<a::b> at 12:30:45",
        "git@github.com:org/repo.git, image@2x.png, @decorator",
        "postgres://user:secret@db.example.com/x",
        "127.0.0.1, 0.0.0.0, ::1 and 255.255.255.0",
        "[100, 200, 300, 400, 500] 1 2 3 4 5 6 7 8 9 10 11 12",
        "4111 1111 1111 1112",
        "0000-0000-0000-0000",
        "3.14159265358979 and 0.4111111111111111",
        "2019-2020, 12/31/1999, 10.5-11.5",
        "article 4006381333931",
        "order number 123456789",
    ],
)
def test_what_is_none(text: str) -> None:
    assert _found(text) == []


def test_kinds_and_regions_are_chosen() -> None:
    text = "4111 1111 1111 1111, j@example.org, phone 020 7946 0018, pesel 44051401359"
    assert [kind for kind, _ in _found(text, Pii("p", ["email"]))] == ["email"]
    assert [kind for kind, _ in _found(text, Pii("p", ["national_id"]))] == []
    assert [kind for kind, _ in _found(text, Pii("p", ["national_id"], ["PL"]))] == ["national_id"]
    assert _found("tel (03) 9123 4567 or x", Pii("p", ["phone"], ["AU"])) == [("phone", "(03) 9123 4567")]
    with pytest.raises(ValueError, match="no kind of personal data called name; the kinds are card, iban"):
        Pii("p", ["name"])
    with pytest.raises(ValueError, match="no region XX"):
        Pii("p", [], ["XX"])


@pytest.mark.parametrize("entry", NATIONAL_IDS, ids=lambda e: f"{e.country}-{e.module}-{bool(e.words)}")
def test_every_national_id_loads_and_its_check_refuses_what_is_none(entry: NationalId) -> None:
    (ready,) = [one for one in ready_ids([entry.country]) if one.entry is entry]
    if entry.module:
        assert not ready.valid("nothing")
    assert ready.form.fullmatch("x" * 8) is None
    assert Pii("p", ["national_id"], [entry.country]).longest <= 70


@pytest.mark.parametrize("entry", [e for e in NATIONAL_IDS if re.fullmatch(r"\\d\{\d+\}", e.form)], ids=lambda e: f"{e.country}-{e.module}")
def test_a_number_alone_is_no_id_without_a_word_and_seldom_with_one(entry: NationalId) -> None:
    rng, rule = random.Random(3), Pii("p", ["national_id"], [entry.country])
    length = int(entry.form[3:-1])
    numbers = ["".join(rng.choices("0123456789", k=length)) for _ in range(300)]
    assert not any(_found(f"order {number}", rule) for number in numbers)
    named = sum(bool(_found(f"national id {number}", rule)) for number in numbers)
    assert named <= 0.6 * len(numbers), "the check refuses next to nothing"


def test_a_wrong_check_digit_of_an_id_is_none() -> None:
    rng = random.Random(5)
    for _ in range(50):
        good = next(d for d in iter(lambda: str(rng.randrange(10**10, 10**11)), None) if idnr.is_valid(d))
        assert _found(f"Steuer-ID {good}", Pii("p", ["national_id"], ["DE"])) == [("national_id", good)]
        bad = good[:-1] + str((int(good[-1]) + 1) % 10)
        assert _found(f"Steuer-ID {bad}", Pii("p", ["national_id"], ["DE"])) == []


@given(st.text("0123456789 +-.()@:abcDE", max_size=120))
def test_findings_lie_in_order_apart_and_within_their_length(text: str) -> None:
    found = RULE.scan(Text(text))
    assert all(a.end <= b.begin for a, b in pairwise(found))
    assert all(f.end - f.begin <= RULE.longest and f.kind in KINDS for f in found)


@pytest.mark.parametrize(
    "text",
    [
        "card number 2345-6789-1234-5678",
        "git config user.email your_email@example.com",
        "default: user@mail.example.org",
        "the pod at 10.12.33.44 and the host 192.168.77.33",
        "id 5843230, on 2024-05-26, at 14:00:00",
        "token 2278-9812-3456-4567",
    ],
)
def test_what_nobody_has_is_none(text: str) -> None:
    assert _found(text) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mail ann.lee@example.com", "ann.lee@example.com"),
        ("mail your_email@mail.de", "your_email@mail.de"),
        ("from 203.0.113.77:8080", "203.0.113.77"),
        ("4111 1111 1111 1111", "4111 1111 1111 1111"),
        ("(so) 030 901820-Office", "030 901820"),
    ],
)
def test_what_operators_try_their_rules_with_is_found(text: str, value: str) -> None:
    assert [found for _, found in _found(text)] == [value]
