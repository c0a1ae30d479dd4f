"""Made texts: the same for the same seed, without open slots or marks, and without what was written after a source that is left out."""

from bench.guards.made_attacks import ATTACK_SLOTS, MARK, Honest, attacks, honest, without

AROUND = Honest(["Where is {it}?"], ["A passage.\nMore of it."], ["plaza", "returns", "Zug"])


def test_a_seed_decides_all_and_no_mark_or_slot_stays() -> None:
    made = attacks(3, 20, AROUND)
    assert made == attacks(3, 20, AROUND) != attacks(4, 20, AROUND)
    assert honest(3, 20) == honest(3, 20) != honest(4, 20)
    for _, text in made + honest(3, 20):
        assert text
        assert MARK not in text
        assert "{" + "command}" not in text
        assert "{" + "honest}" not in text


def test_every_family_has_as_many() -> None:
    families = [family for family, _ in attacks(1, 7, AROUND)]
    assert {families.count(family) for family in set(families)} == {7}


def test_phrases_after_a_source_are_left_out_with_it_and_no_slot_is_empty() -> None:
    sources = {phrase.rpartition(MARK)[2] for phrases in ATTACK_SLOTS.values() for phrase in phrases if MARK in phrase}
    assert sources == {"deepset", "cyberseceval", "jailbreakbench", "in the wild", "bipia"}
    every = without(ATTACK_SLOTS, None)
    for source in sources:
        kept = without(ATTACK_SLOTS, source)
        assert all(kept.values())
        gone = {phrase for name in every for phrase in set(every[name]) - set(kept[name])}
        marked = {phrase.rpartition(MARK)[0] for phrases in ATTACK_SLOTS.values() for phrase in phrases if phrase.endswith(MARK + source)}
        assert gone == marked
