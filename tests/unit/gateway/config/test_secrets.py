import pytest
from pydantic import ValidationError

from gateway.config.secrets import SecretReference, SecretSettings


def test_a_secret_reference_names_exactly_one_place():
    assert SecretReference(env="A_KEY").file is None
    for wrong in ({}, {"file": "a", "env": "B"}, {"file": ""}, {"env": "not a name"}, {"value": "x"}, "literal", 5):
        with pytest.raises(ValidationError):
            SecretReference.model_validate(wrong)


def test_an_unfilled_pepper_is_none_and_an_empty_one_a_mistake():
    assert SecretSettings.model_validate({"pepper": {"file": None, "env": None}}).pepper is None
    with pytest.raises(ValidationError):
        SecretSettings.model_validate({"pepper": {}})
