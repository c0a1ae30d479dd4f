from domain.faults import SOURCE, Kind, Source
from policies.compile import TenantPolicy, compiled
from policies.fallback import CONDITION_OF, CONDITIONS, Fallback, in_words
from policies.schema import PolicyDocument
from policies.shown import differences, meaning


def policy(*models: dict[str, object], tenant: str = "acme") -> TenantPolicy:
    found = compiled([PolicyDocument.model_validate({"tenant": tenant, "models": list(models)})]).for_tenant(tenant)
    assert found is not None
    return found


BIG = {"name": "big", "pools": [{"pool": "a", "weight": 1}, {"pool": "b", "weight": 1}], "fallback": [{"to": "gpt"}]}
SMALL = {"name": "small", "pool": "c"}
ALIAS = {"name": "gpt", "alias_of": "small"}


def test_a_chain_leads_to_models_whatever_they_were_called_and_whichever_pool_they_were_dealt_to() -> None:
    models = policy(BIG, SMALL, ALIAS, {"name": "large", "alias_of": "big"}).models
    chain = (Fallback("small", frozenset({"no_capacity", "error"})),)
    assert models["big"].fallback == models["large"].fallback == models["big"].shared("me").fallback == chain
    assert models["small"].fallback == ()
    assert models["big"].shared("me").shares == ()


def test_what_inherits_models_inherits_their_chains() -> None:
    everyone = PolicyDocument.model_validate({"tenant": "*", "models": [BIG, SMALL, ALIAS]})
    found = compiled([everyone, PolicyDocument.model_validate({"tenant": "acme"})]).for_tenant("acme")
    assert found is not None
    assert [one.model for one in found.models["big"].fallback] == ["small"]


def test_every_failure_of_an_engine_has_a_condition_and_no_limit_of_the_caller_has() -> None:
    assert {kind for kind, source in SOURCE.items() if source is Source.ENGINE} <= CONDITION_OF.keys()
    assert set(CONDITION_OF.values()) == set(CONDITIONS)
    assert CONDITION_OF.keys().isdisjoint({Kind.TOKEN_LIMIT, Kind.QUOTA_SPENT, Kind.CRASHES_ENGINES, Kind.CLIENT_GONE, Kind.INVALID_VALUE})
    assert CONDITION_OF[Kind.ENGINE_BUSY] == "no_capacity"


def test_chains_are_told_and_so_is_what_changes_of_them() -> None:
    chain = (Fallback("small", frozenset({"error", "no_capacity"})), Fallback("long", frozenset({"context_too_long"})))
    assert in_words(chain) == "small on no_capacity, error, then long on context_too_long"
    assert in_words(()) == ""
    assert meaning("big", policy(BIG, SMALL, ALIAS).models["big"]) == "big -> 50 % a, 50 % b, else small on no_capacity, error"
    before, after = (
        compiled([PolicyDocument.model_validate({"tenant": "acme", "models": [SMALL, {"name": "m", "pool": "x", **more}]})])
        for more in ({}, {"fallback": [{"to": "small", "on": ["error"]}]})
    )
    assert list(differences(before, after)) == ["acme: model m -> x becomes m -> x, else small on error"]
