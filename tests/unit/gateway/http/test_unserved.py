"""Routes that are not served have a sentence of their own."""

import pytest

from gateway.http.data_port import INFERENCE, OWN, TRANSLATED
from gateway.http.unserved import INSTEAD, instead_of


@pytest.mark.parametrize("begin", INSTEAD)
def test_each_sentence_is_told_of_its_path_and_what_is_below_it(begin: str) -> None:
    assert instead_of(f"{begin}/id_1/parts") == INSTEAD[begin]
    assert begin in TRANSLATED or begin in INFERENCE or instead_of(begin) == INSTEAD[begin]
    assert instead_of(f"{begin}x") != INSTEAD[begin], "whole segments count"
    assert begin not in OWN


def test_a_longer_beginning_goes_before_a_shorter_one() -> None:
    assert instead_of("/v1/responses/compact") != instead_of("/v1/responses/resp_1") != ""
    assert instead_of("/v1/nothing") == ""
