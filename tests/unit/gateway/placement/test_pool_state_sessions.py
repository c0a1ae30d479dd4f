from gateway.placement.pool_state import Sessions, session_of

SECRET = b"s" * 32


def test_a_conversation_is_where_its_last_turn_was() -> None:
    sessions = Sessions()
    sessions.held(7, "a")
    sessions.held(7, "b")
    assert (sessions.holder(7), sessions.holder(8), sessions.holder(0)) == ("b", "", "")
    sessions.held(0, "a")
    assert len(sessions) == 1


def test_the_quiet_ones_go_first_and_it_stays_bounded() -> None:
    sessions = Sessions(most=100)
    for number in range(1, 1001):
        sessions.held(number, "a")
        sessions.held(1, "b")
    assert len(sessions) == 100
    assert (sessions.holder(1), sessions.holder(2), sessions.holder(1000)) == ("b", "", "a")


def test_a_backend_that_lost_its_cache_holds_none_until_it_has_a_turn_again() -> None:
    sessions = Sessions()
    sessions.held(1, "a")
    sessions.held(2, "b")
    sessions.forget("a")
    assert (sessions.holder(1), sessions.holder(2)) == ("", "b")
    sessions.held(3, "a")
    assert (sessions.holder(1), sessions.holder(3)) == ("", "a")


def test_a_name_means_a_conversation_of_one_tenant_only_and_cannot_be_read_back() -> None:
    made = {session_of(name, tenant, SECRET) for name in ("x", "y") for tenant in ("acme", "acm", "e")}
    assert len(made) == 6
    assert session_of("x", "acme", SECRET) == session_of("x", "acme", SECRET)
    assert session_of("x", "acme", b"t" * 32) not in made
    assert session_of("", "acme", SECRET) == 0
    assert session_of("ex", "acm", SECRET) != session_of("x", "acme", SECRET)
