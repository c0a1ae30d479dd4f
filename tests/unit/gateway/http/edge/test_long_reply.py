import pytest

from gateway.http.edge.long_reply import LongReply, model_named


def test_blanks_without_end_behind_a_key_are_not_held_back() -> None:
    reply = LongReply()
    reply.feed(b'{"data":[{"embedding":')
    for _ in range(200):
        reply.feed(b" " * 65_536)
    assert reply.size > 10_000_000, "they count, so that the bound on what is kept applies"


def test_a_model_whose_name_is_model_is_not_cut_from_its_key() -> None:
    whole = b'{"data":[{"embedding":[0.5]}],"model":"model"}'
    for cut in range(1, len(whole)):
        reply = LongReply()
        passed = [reply.feed(whole[:cut]), reply.feed(whole[cut:])]
        _, held = reply.end()
        assert b"".join([*passed, held]) == whole
        assert all(piece.count(b'"model"') != 1 for piece in (*passed, held)), cut


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"m"}', "m"),
        (b' { "id" : "x", "model" : "m" , "data":', "m"),
        (b'{"usage":{"model":"other"},"data":[{"model":"third","embedding":[1,2]}],"model":"m"}', "m"),
        (b'{"usage":{"model":"other"},"data":[', None),
        (b'{"id":"model","x":"{[","model":"m"', "m"),
        (rb'{"id":"\"model\":\"other\"","model":"a\/b"', "a/b"),
        (rb'{"m\u006fdel":"m"', "m"),
        (b'{"model":"m', None),
        (b'{"model":5,"x":"m"}', None),
        (b'{"model":null,"x":"m"}', None),
        (b'{"id":"x","model"', None),
        (b'{"id":"x\\', None),
        (rb'{"model":"\ud800"}', None),
        (b"[]", None),
        (b"", None),
    ],
)
def test_the_name_is_the_replys_own(body: bytes, name: str | None) -> None:
    assert model_named(body) == name
