import pytest

from backends.simengine.settings import SimSettings


def test_only_sglang_pushes_its_load() -> None:
    assert SimSettings(dialect="sglang", load_push="tcp://127.0.0.1:*").load_push
    with pytest.raises(ValueError, match="only dialect sglang pushes its load"):
        SimSettings(load_push="tcp://127.0.0.1:*")


@pytest.mark.parametrize("guard", [{"": "S1"}, {"bomb": ""}, {"bomb": "S1,S2"}, {"bomb": "S1\n"}])
def test_words_of_a_guard_model_have_one_category(guard: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="guard: "):
        SimSettings(guard=guard)
