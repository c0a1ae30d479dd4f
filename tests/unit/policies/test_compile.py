import pytest

from policies.compile import ModelRule, PolicySet, compiled
from policies.schema import ModelEntry, PolicyDocument


def document(tenant, *models, **more):
    return PolicyDocument(tenant=tenant, models=[ModelEntry(name=name, pool="chat") for name in models], **more)


def test_a_tenant_gets_its_own_policy_else_everyones():
    policies = compiled([document("*", "small"), document("acme", "big", expose_headers=True, max_output_tokens=7)])
    acme = policies.for_tenant("acme")
    assert acme is not None
    assert (acme.tenant, acme.routing, acme.expose_headers, acme.max_output_tokens) == ("acme", "least_load", True, 7)
    assert acme.models == {"big": ModelRule("big", "chat")}
    other = policies.for_tenant("umbrella")
    assert other is not None
    assert (other.tenant, list(other.models)) == ("*", ["small"])


def test_without_a_policy_for_everyone_strangers_get_none():
    policies = compiled([document("acme", "big")])
    assert policies.for_tenant("umbrella") is None
    assert compiled([]).for_tenant("acme") is None


def test_the_star_is_no_tenant_of_its_own():
    policies = compiled([document("*", "small"), document("acme")])
    assert [policy.tenant for policy in policies.policies()] == ["acme", "*"]


def test_the_digest_follows_content_and_nothing_else():
    one = compiled([document("a", "m", "n"), document("b")])
    assert len(one.digest) == 16
    assert one.digest == compiled([document("b"), document("a", "n", "m")]).digest
    others = [[document("a", "m"), document("b")], [document("a", "m", "n")], [document("a", "m", "n"), document("b", expose_headers=True)]]
    assert len({one.digest, *(compiled(documents).digest for documents in others)}) == 4


def test_a_set_never_changes():
    policies = compiled([document("a", "m")])
    policy = policies.for_tenant("a")
    assert policy is not None
    with pytest.raises(TypeError):
        policy.models["n"] = ModelRule("n", "chat")  # type: ignore[index]
    with pytest.raises(AttributeError):
        policy.tenant = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        policies.digest = ""  # type: ignore[misc]


def test_a_set_can_be_made_directly():
    assert PolicySet([], "d").digest == "d"
