"""The token ids of one prompt while a thread makes them beside the event loop; the request takes the ids that are made in time."""

from array import array

from gateway.tokenizers.pieces import Ids


class Reading:
    """The ids made so far: one thread writes them, piece by piece from the front, and another reads them at any time."""

    __slots__ = ("_pieces", "_tokens", "whole")

    def __init__(self) -> None:
        self._pieces: list[Ids] = []
        self._tokens = 0
        self.whole = False
        """Whether all ids are made; set last."""

    def add(self, ids: Ids) -> None:
        """Add the next ids of the prompt."""
        self._pieces.append(ids)
        self._tokens += len(ids)

    def more(self, tokens: int) -> None:
        """Count tokens of the request's further prompts, whose ids share no prefix with the first prompt."""
        self._tokens += tokens

    @property
    def tokens(self) -> int:
        """Tokens so far; all tokens of the request once it is whole."""
        return self._tokens

    def ids(self) -> Ids:
        """The ids of the first prompt, as far as they are made."""
        ids = array("I")
        for piece in tuple(self._pieces):
            ids.extend(piece)
        return ids
