from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from gateway.queue.deadlines import DEFAULT_WAIT_S, class_of, may_wait_s, place_back, place_of
from gateway.story import Story
from routing.fair_tier import NOT_YET
from routing.load import LoadTable
from tests.stories import with_facts

CALLER = Caller(TenantId("acme"), ProjectId("p"), KeyId("k"))


def story(**options: object) -> Story:
    facts = {"caller": CALLER, "priority_class": Class.BATCH, "request_bytes": 77, **options}
    return with_facts(Story("r", 9.0, 0.0, 10.0, "r"), **facts)


def test_its_place_is_made_of_who_asks_how_soon_and_for_how_much() -> None:
    place = place_of(0, 5, 3.0, story(retry=True), 100.0)
    assert (place.tenant, place.tier, place.retry, place.cost, place.held) == ("acme", Class.BATCH, True, 1, 5)
    assert (place.deadline, place.entered_at, place.size_bytes) == (103.0, 100.0, 77)
    assert place_of(0, 5, 3.0, story(image_bytes=900), 100.0).size_bytes == 977, "with the images that were fetched for it"


def test_a_caller_may_shorten_what_its_class_may_wait() -> None:
    assert may_wait_s(story()) == DEFAULT_WAIT_S[Class.BATCH]
    assert may_wait_s(story(asked_wait_s=2.0)) == 2.0
    assert may_wait_s(story(end_at=14.0)) == 4.0, "from its last byte to when its answer has to be complete"
    assert class_of(story(priority_class=None)) is Class.DEFAULT


def test_one_that_never_waited_comes_back_as_old_as_it_is() -> None:
    charge = LoadTable("a").charge("a", 300, 400, 50.0)
    place = place_back(story(), charge)
    assert (place.entered_at, place.deadline) == (10.0, 10.0 + DEFAULT_WAIT_S[Class.BATCH]), "from when its last byte was there"
    assert place.cost == 300 + 2 * 100, "uncached prompt + 2 * expected output"
    assert place.back


def test_one_that_waited_comes_back_with_the_place_it_had() -> None:
    before = place_of(500, 64, 7.0, story(), 20.0)
    before.seq, before.by_share = 12, True
    place = place_back(story(queue_place=before), LoadTable("a").charge("a", 1, 1, 50.0))
    assert (place.cost, place.held, place.deadline, place.entered_at, place.size_bytes) == (500, 64, 27.0, 20.0, 77)
    assert (place.back, place.by_share, place.seq) == (True, False, NOT_YET)
    assert not before.back, "what was charged stays as it was"
