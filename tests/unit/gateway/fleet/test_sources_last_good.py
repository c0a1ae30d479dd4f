from pathlib import Path

from domain.membership import KvEvents, Member
from gateway.fleet.sources import LastGood, file_of
from tests.unit.gateway.fleet.test_membership import Source

X = Member("chat", "x", "https://e:1", "dns", "10.0.0.1", KvEvents("tcp://10.0.0.1:5557"), 3.0)


def test_answers_are_kept_whole_with_their_age(tmp_path: Path) -> None:
    now = 100.0
    kept = LastGood(tmp_path, lambda: now)
    source = Source(keep_s=10.0)
    assert kept.load(source) is None
    kept.save(source, [X])
    now = 109.0
    assert kept.load(source) == ([X], 9.0)
    now = 111.0
    assert kept.load(source) is None
    now = 50.0  # the clock was set back
    assert kept.load(source) == ([X], 0.0)


def test_sources_do_not_share_answers_and_damage_is_no_answer(tmp_path: Path) -> None:
    kept = LastGood(tmp_path, lambda: 0.0)
    one, other = Source(), Source()
    other.pool = "embeddings"
    kept.save(one, [X])
    assert kept.load(other) is None
    (tmp_path / file_of(one)).write_text("{")
    assert kept.load(one) is None


def test_a_folder_that_is_gone_is_survived(tmp_path: Path) -> None:
    LastGood(tmp_path / "gone", lambda: 0.0).save(Source(), [X])
