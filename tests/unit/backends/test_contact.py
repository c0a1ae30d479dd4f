"""Backends that could not be reached: avoided until they answer, and asked again in time but never in a hurry."""

from backends.contact import CHECK_AWAY_S, CHECK_FIRST_S, CHECK_LONGEST_S, LostContacts, next_pause_s
from domain.faults import Kind


def made() -> tuple[LostContacts, list[str]]:
    contacts, told = LostContacts(), list[str]()
    contacts.on_lost = lambda backend: told.append(f"lost {backend}")
    contacts.on_found = lambda backend: told.append(f"found {backend}")
    return contacts, told


def test_a_backend_is_lost_once_and_found_once() -> None:
    contacts, told = made()
    for _ in range(3):
        contacts.failed("a", Kind.CONNECT_FAILED)
    assert "connect_failed" in contacts.lost["a"]
    for _ in range(3):
        contacts.found("a")
    assert told == ["lost a", "found a"]
    assert contacts.lost == {}


def test_a_pool_is_out_only_while_none_of_its_backends_can_be_reached() -> None:
    contacts, _ = made()
    contacts.failed("a", Kind.CONNECT_FAILED)
    assert not contacts.none_left(["a", "b"])
    assert not contacts.none_left([])
    contacts.failed("b", Kind.RESET_BEFORE_REPLY)
    assert contacts.none_left(["a", "b"])
    contacts.answered("b")
    assert not contacts.none_left(["a", "b"])
    contacts.forget("a")
    assert contacts.lost == {}


def test_losses_without_an_answer_between_are_checked_ever_later() -> None:
    contacts, _ = made()
    pauses = [contacts.first_pause_s("a") for _ in range(8)]
    assert pauses[:3] == [CHECK_FIRST_S, 2 * CHECK_FIRST_S, 4 * CHECK_FIRST_S]
    assert pauses[-1] == CHECK_LONGEST_S
    assert contacts.first_pause_s("b") == CHECK_FIRST_S
    contacts.answered("a")
    assert contacts.first_pause_s("a") == CHECK_FIRST_S


def test_checks_of_a_backend_that_stays_away_come_within_a_second() -> None:
    pause_s = CHECK_FIRST_S
    for _ in range(5):
        pause_s = next_pause_s(pause_s)
        assert pause_s <= CHECK_AWAY_S
    assert next_pause_s(CHECK_LONGEST_S) == CHECK_LONGEST_S
