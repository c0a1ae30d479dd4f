"""Signatures of thinking."""

from gateway.http.anthropic.signatures import ThinkingSigner


def test_a_signature_is_known_by_the_same_secret_and_for_the_same_text() -> None:
    ours, other_worker, stranger = ThinkingSigner(b"one"), ThinkingSigner(b"one"), ThinkingSigner(b"two")
    signature = ours.sign("I think \ud83d")
    assert other_worker.knows("I think \ud83d", signature)
    assert not ours.knows("I think", signature)
    assert not stranger.knows("I think \ud83d", signature)
    assert not ours.knows("I think \ud83d", "")
    assert not ours.knows("I think \ud83d", "\udfff")
