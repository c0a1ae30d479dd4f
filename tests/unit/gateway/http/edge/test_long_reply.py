from gateway.http.edge.long_reply import LongReply


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
