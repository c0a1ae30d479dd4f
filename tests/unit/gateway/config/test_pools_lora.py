import pytest
from pydantic import ValidationError

from backends.lora.residency import Adapter
from gateway.config.pools import LoraSettings
from tenancy.isolation import PREFIX

GOOD = {"name": "support-bot", "digest": "3c" * 32, "path": "/adapters/support-bot"}


def test_what_is_registered_is_what_engines_are_told() -> None:
    lora = LoraSettings.model_validate(GOOD)
    assert Adapter(lora.name, lora.digest, lora.path).served == "support-bot@3c3c3c3c3c3c"


@pytest.mark.req("R42")
@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "3c" * 31},
        {"digest": "3C" * 32},
        {"digest": ""},
        {"name": "support@bot"},
        {"name": "a:b"},
        {"name": "a/b"},
        {"name": f"{PREFIX}bot"},
        {"path": ""},
        {"rank": 8},
    ],
    ids=str,
)
def test_what_cannot_be_pinned_or_could_be_mistaken_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoraSettings.model_validate(GOOD | wrong)
