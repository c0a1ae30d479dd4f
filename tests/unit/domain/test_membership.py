from domain.membership import MAX_CLASHES, LoadPush, Member, merged


def member(backend_id: str, owner: str, pool: str = "chat", url: str = "http://h:1") -> Member:
    return Member(pool, backend_id, url, owner)  # type: ignore[arg-type]  # an Owner


def test_every_id_has_one_owner_and_the_one_that_is_harder_to_change_wins() -> None:
    wanted = [member("a", owner, url=f"http://{owner}") for owner in ("registered", "dns", "file", "static")]
    members, clashes = merged(wanted, {"chat"})
    assert [m.owner for m in members.values()] == ["static"]
    assert len(clashes) == 3
    assert clashes[0].why == (
        "backend 'a' is in tidegate.yaml (pool chat) and in the pool's discover.file (pool chat); the first one counts, "
        "give the other one its own id"
    )


def test_the_order_of_wishes_does_not_matter() -> None:
    wanted = [member("a", "file"), member("b", "registered"), member("a", "dns")]
    assert merged(wanted, {"chat"})[0] == merged(reversed(wanted), {"chat"})[0]


def test_a_wish_for_a_pool_that_is_not_there_is_told_and_takes_no_id() -> None:
    members, clashes = merged([member("a", "registered", pool="gone")], {"chat"})
    assert members == {}
    assert "pool 'gone', which this gateway does not have" in clashes[0].why


def test_what_is_told_is_bounded() -> None:
    wanted = [member(f"b{n}", owner) for n in range(50) for owner in ("static", "file")]
    assert len(merged(wanted, {"chat"})[1]) == MAX_CLASHES


def test_another_url_or_address_is_another_place_and_another_owner_is_not() -> None:
    one = member("a", "file")
    assert one.same_place(member("a", "static"))
    assert not one.same_place(member("a", "file", url="http://h:2"))
    assert not one.same_place(Member("chat", "a", one.url, "file", "10.0.0.1"))


def test_a_wish_for_a_pool_that_is_not_there_takes_nothing_from_others() -> None:
    members, clashes = merged([member("a", "static"), member("a", "registered", pool="gone")], {"chat"})
    assert members["a"].owner == "static"
    assert len(clashes) == 1


def test_two_ids_for_one_place_in_a_pool_are_told_and_both_stay() -> None:
    wanted = [member("a", "static"), member("b", "file", url="http://h:1/"), member("c", "file", pool="other")]
    members, clashes = merged(wanted, {"chat", "other"})
    assert set(members) == {"a", "b", "c"}
    assert [(clash.member.id, clash.why) for clash in clashes] == [
        (
            "b",
            "backend 'b' of the pool's discover.file has the URL of backend 'a' of tidegate.yaml (pool chat); "
            "one engine counts as two, remove one of them",
        )
    ]


def test_every_rank_has_the_port_after_the_one_before() -> None:
    assert LoadPush("tcp://[::1]:5559", 3).endpoints == ("tcp://[::1]:5559", "tcp://[::1]:5560", "tcp://[::1]:5561")


def test_a_push_at_another_address_is_another_process() -> None:
    one = Member("chat", "a", "http://h:1", "static", load_push=LoadPush("tcp://h:2"))
    assert one.same_place(Member("chat", "a", "http://h:1", "static", load_push=LoadPush("tcp://h:2")))
    assert not one.same_place(Member("chat", "a", "http://h:1", "static", load_push=LoadPush("tcp://h:2", 2)))
