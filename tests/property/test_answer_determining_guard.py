"""The guard on minimal pairs: one changed number, negation, name or unit, and nothing else."""

import itertools

import pytest

from cache.semantic.guard import difference, profile

FRAMES = (
    "How do I move {number} {unit} from my account to {name}?",
    "Does {name} have to pay {number} {unit} for the transfer?",
    "Is {name} allowed to store {number} {unit} in the cellar?",
    "Please explain how {name} can save {number} {unit} in a month.",
    "What happens when {name} is {number} {unit} over the limit?",
)
NUMBERS = ("2", "15", "300", "4.5", "seven")
UNITS = ("euros", "dollars", "litres", "kilometres", "hours")
NAMES = ("Anna", "Peter", "Berlin", "Microsoft", "Maria Lopez")
NEGATED = {
    "How do I move": "How do I not move",
    "have to pay": "not have to pay",
    "allowed to store": "not allowed to store",
    "can save": "cannot save",
    "is {number}": "is not {number}",
}


def pairs(kind: str) -> list[tuple[str, str]]:
    """Pairs of sentences that differ in one thing."""
    found = []
    for frame, number, unit, name in itertools.product(FRAMES, NUMBERS, UNITS, NAMES):
        text = frame.format(number=number, unit=unit, name=name)
        if kind == "number":
            found += [(text, frame.format(number=other, unit=unit, name=name)) for other in NUMBERS if other != number]
        elif kind == "unit":
            found += [(text, frame.format(number=number, unit=other, name=name)) for other in UNITS if other != unit]
        elif kind == "name":
            found += [(text, frame.format(number=number, unit=unit, name=other)) for other in NAMES if other != name]
        else:
            negated = next(frame.replace(plain, other) for plain, other in NEGATED.items() if plain in frame)
            found.append((text, negated.format(number=number, unit=unit, name=name)))
    return found[:: max(1, len(found) // 300)]


@pytest.mark.req("R47")
@pytest.mark.parametrize("kind", ["number", "unit", "name", "negation"])
def test_no_minimal_pair_passes(kind: str) -> None:
    made = pairs(kind)
    assert len(made) >= 250, "1,000 pairs of four kinds together"
    assert [pair for pair in made if not difference(profile(pair[0]), profile(pair[1]))] == []


PARAPHRASES = (
    ("How do I reset my password?", "Password reset steps"),
    ("What is the capital of France?", "Name the capital of France."),
    ("How can I cancel my subscription?", "Steps to cancel a subscription"),
    ("Where do I find my invoices?", "Where can invoices be downloaded?"),
    ("How does photosynthesis work?", "Explain photosynthesis to me"),
    ("What does a load balancer do?", "Explain what a load balancer is for"),
    ("How do I boil an egg?", "Tell me how to boil an egg"),
    ("Why is the sky blue?", "Why does the sky look blue?"),
    ("Who wrote Hamlet?", "Who is the author of Hamlet?"),
    ("How do I change my delivery address?", "Change the delivery address of my account"),
    ("How many people live in Berlin?", "How many inhabitants does Berlin have?"),
    ("What are the opening hours of the shop?", "Opening hours of the shop please"),
    ("Can I return shoes that I have worn?", "Is it possible to return worn shoes?"),
    ("How do I install Python on Windows?", "Installing Python on Windows, how?"),
    ("What is a black hole?", "Describe a black hole"),
    ("How do I write a cover letter?", "Help me write a cover letter"),
    ("Which documents are needed for a loan?", "Which papers do I need for a loan?"),
    ("How do I block my card?", "My card has to be blocked, what are the steps?"),
    ("What does an index fund cost?", "Tell me the cost of an index fund"),
    ("How do vaccines work?", "The way vaccines work, please"),
)


@pytest.mark.req("R47")
def test_most_paraphrases_pass() -> None:
    """60 % of what would pass without the guard, which is all of them. Public pairs are in `docs/numbers.md`."""
    passed = [pair for pair in PARAPHRASES if not difference(profile(pair[0]), profile(pair[1]))]
    assert len(passed) >= 0.6 * len(PARAPHRASES)
