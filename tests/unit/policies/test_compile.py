import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.priority import Class
from policies.compile import ModelRule, PolicySet, compiled
from policies.ladder import Mark
from policies.schema import ModelEntry, PolicyDocument, ResponsesPolicy


def document(tenant, *models, **more):
    return PolicyDocument(tenant=tenant, models=[ModelEntry(name=name, pool="chat") for name in models], **more)


def test_a_tenant_gets_its_own_policy_else_everyones():
    policies = compiled([document("*", "small"), document("acme", "big", expose_headers=True, max_output_tokens=7)])
    acme = policies.for_tenant("acme")
    assert acme is not None
    assert (acme.tenant, acme.routing.policy, acme.expose_headers, acme.max_output_tokens) == ("acme", "predicted_latency", True, 7)
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
    assert PolicySet({}, None, "d").digest == "d"


def read(**documents):
    return compiled(
        [PolicyDocument.model_validate({"tenant": "*" if name == "everyone" else name, **one}) for name, one in documents.items()]
    )


CHAT = {"name": "chat", "pool": "chat"}
BIG = {"name": "big", "pool": "chat"}


def test_what_a_file_does_not_say_comes_from_everyones():
    everyone = {"models": [CHAT], "class": "batch", "max_wait_s": 9.0, "expose_headers": True}
    policies = read(everyone=everyone, acme={"max_wait_s": None}, lab={"models": [], "class": "critical"})
    acme, lab = policies.for_tenant("acme"), policies.for_tenant("lab")
    assert acme is not None
    assert lab is not None
    assert (list(acme.models), acme.priority_class, acme.max_wait_s, acme.expose_headers) == (["chat"], Class.BATCH, None, True)
    assert (list(lab.models), lab.priority_class, lab.max_wait_s) == ([], Class.CRITICAL, 9.0)


def test_a_project_and_then_a_model_come_after_what_is_for_all_and_the_tenant_after_everyone():
    everyone = {
        "models": [CHAT, BIG],
        "class": "batch",
        "max_output_tokens": 1,
        "for_model": {"big": {"class": "critical", "priority": 0.5}},
    }
    acme = {
        "class": "interactive",
        "for_project": {"lab": {"class": "batch", "max_wait_s": 1}},
        "for_model": {"chat": {"class": "critical"}},
    }
    policy = read(everyone=everyone, acme=acme).for_tenant("acme")
    assert policy is not None
    found = {(p, m): policy.treating(p, m) for p in ("lab", "default") for m in ("chat", "big", "other")}
    assert {at: (one.priority_class, one.max_wait_s, one.priority) for at, one in found.items()} == {
        ("lab", "chat"): (Class.CRITICAL, 1, 0.0),
        ("lab", "big"): (Class.BATCH, 1, 0.5),
        ("lab", "other"): (Class.BATCH, 1, 0.0),
        ("default", "chat"): (Class.CRITICAL, None, 0.0),
        ("default", "big"): (Class.INTERACTIVE, None, 0.5),
        ("default", "other"): (Class.INTERACTIVE, None, 0.0),
    }
    assert {one.max_output_tokens for one in found.values()} == {1}
    assert found["default", "other"] is policy


def test_an_alias_is_the_model_it_stands_for():
    aliases = [{"name": "gpt-4o", "alias_of": "new"}, {"name": "new", "alias_of": "chat"}]
    policy = read(acme={"models": [*aliases, {**CHAT, "lora": "l"}]}).for_tenant("acme")
    assert policy is not None
    assert set(policy.models.values()) == {ModelRule("chat", "chat", "l")}


def test_of_an_inherited_ladder_steps_to_models_that_are_not_there_are_left_out():
    ladder = [{"model": "big"}, "queue", {"model": "chat"}]
    policies = read(everyone={"models": [CHAT, BIG, {"name": "x", "pool": "x"}], "degrade": ladder}, acme={"models": [BIG]})
    everyone, acme = policies.for_tenant("*"), policies.for_tenant("acme")
    assert everyone is not None
    assert acme is not None
    assert len(everyone.degrade) == 3
    assert [getattr(step, "model", step) for step in acme.degrade] == ["big", Mark.QUEUE]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(0, 4))
def test_conversations_are_dealt_out_by_weight_and_stay_where_weights_allow(weights, grown):
    def rule_of(weights):
        pools = [{"pool": f"p{i}", "weight": weight} for i, weight in enumerate(weights)]
        policy = read(acme={"models": [{"name": "m", "pools": pools}]}).for_tenant("acme")
        assert policy is not None
        return policy.models["m"]

    keys = [f"conversation-{n}" for n in range(400)]
    before, after = rule_of(weights), rule_of([*weights[:-1], weights[-1] + grown])
    homes = [before.shared(key).pool for key in keys]
    assert homes == [before.shared(key).pool for key in keys]
    assert {before.shared(key).shares for key in keys} == {()}
    for i, weight in enumerate(weights):
        assert abs(homes.count(f"p{i}") / 400 - weight / sum(weights)) < 0.12  # 4.8 standard deviations of the widest
    moved = sum(after.shared(key).pool != home for key, home in zip(keys, homes, strict=True))
    assert moved / 400 <= (len(weights) - 1) * grown / (sum(weights) + grown) + 0.12


def test_responses_are_stored_where_a_policy_says_so_and_inherited_as_a_whole() -> None:
    everyone = PolicyDocument.model_validate({"tenant": "*", "models": [{"name": "a", "pool": "p"}], "responses": {"keep_days": 7}})
    acme = PolicyDocument.model_validate({"tenant": "acme", "for_project": {"lab": {"responses": {"store": False}}}})
    bolt = PolicyDocument.model_validate({"tenant": "bolt", "responses": None})
    policies = compiled([everyone, acme, bolt])
    of_acme, of_bolt = policies.for_tenant("acme"), policies.for_tenant("bolt")
    assert of_acme is not None
    assert of_bolt is not None
    assert of_bolt.responses is None
    assert of_acme.responses == ResponsesPolicy(store=True, keep_days=7)
    assert of_acme.treating("lab", "a").responses == ResponsesPolicy(store=False, keep_days=30)
