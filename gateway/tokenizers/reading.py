"""The token ids of one prompt while they are being made, beside the loop: whoever waits no longer takes what is there."""

from array import array

from gateway.tokenizers.pieces import Ids


class Reading:
    """Written by one thread, piece by piece from the front; read by another at any time."""

    __slots__ = ("_pieces", "_tokens", "whole")

    def __init__(self) -> None:
        self._pieces: list[Ids] = []
        self._tokens = 0
        self.whole = False
        """Whether nothing follows; set last."""

    def add(self, ids: Ids) -> None:
        """The next ids of the prompt."""
        self._pieces.append(ids)
        self._tokens += len(ids)

    def more(self, tokens: int) -> None:
        """Tokens of the request that are behind its first prompt: they count, and share no prefix with it."""
        self._tokens += tokens

    @property
    def tokens(self) -> int:
        """Tokens so far; all of the request's where it is whole."""
        return self._tokens

    def ids(self) -> Ids:
        """The ids of the first prompt, as far as they are known."""
        ids = array("I")
        for piece in tuple(self._pieces):
            ids.extend(piece)
        return ids
