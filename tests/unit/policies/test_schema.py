import pytest
from pydantic import ValidationError

from policies.schema import MAX_MODELS, ModelEntry, PolicyDocument


def test_defaults_trust_nobody():
    policy = PolicyDocument(tenant="acme")
    assert (policy.models, policy.routing, policy.expose_headers, policy.max_output_tokens) == ([], "predicted_latency", False, 4096)


@pytest.mark.parametrize("tenant", ["*", "a", "acme-research", "a" * 63, "7"])
def test_tenants(tenant):
    assert PolicyDocument(tenant=tenant).tenant == tenant


@pytest.mark.parametrize("tenant", ["", "**", "Acme", "-a", "a-", "a_b", "a" * 64, "acme\n", "ä"])
def test_no_tenants(tenant):
    with pytest.raises(ValidationError):
        PolicyDocument(tenant=tenant)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ä", "x" * 257])
def test_no_model_names(name):
    with pytest.raises(ValidationError):
        ModelEntry(name=name, pool="chat")


def test_models_are_bounded():
    with pytest.raises(ValidationError):
        PolicyDocument(tenant="a", models=[ModelEntry(name=f"m{i}", pool="p") for i in range(MAX_MODELS + 1)])
