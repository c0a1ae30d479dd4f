"""Which deployments become which pools, and what is said of those that do not."""

import pytest
import yaml

from gateway.importing.litellm import carry_models
from gateway.importing.plan import ImportPlan
from policies.yaml.located import parse_yaml

ENGINE = {"model": "hosted_vllm/m", "api_base": "http://10.0.0.1:8000/v1"}


def carried(*entries: object) -> ImportPlan:
    plan = ImportPlan()
    carry_models(parse_yaml(yaml.safe_dump({"model_list": list(entries)}).encode(), "config.yaml", None), plan)
    return plan


def entry(name: str = "m", more: dict[str, object] | None = None, **params: object) -> dict[str, object]:
    return {"model_name": name, "litellm_params": ENGINE | params} | (more or {})


def said(plan: ImportPlan) -> list[str]:
    return [f"{remark.path}: {remark.text}" for remark in plan.left]


def test_two_names_of_the_same_engines_share_a_pool() -> None:
    plan = carried(entry("a"), entry("b"), entry("c", api_base="http://10.0.0.2:8000"))
    assert plan.models == {"a": "a", "b": "a", "c": "c"}
    assert [pool["name"] for pool in plan.pools] == ["a", "c"]
    assert plan.left == []


def test_one_name_for_several_models_is_pools_that_share_it_by_weight() -> None:
    others = [entry(api_base=f"http://10.0.0.{at}:8000", weight=2) for at in (2, 3)]
    plan = carried(entry(model="hosted_vllm/other"), *others)
    assert [(pool["model"], [backend["url"] for backend in pool["backends"]]) for pool in plan.pools] == [
        ("other", ["http://10.0.0.1:8000"]),
        ("m", ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]),
    ]
    assert plan.shares == {"m": [{"pool": "m", "weight": 1.0}, {"pool": "m-2", "weight": 4.0}]}
    assert plan.left == []


def test_weights_of_engines_of_one_model_are_left_and_odd_ones_named() -> None:
    assert "chosen by their load" in said(carried(entry(weight=3)))[0]
    assert "is no weight above 0" in said(carried(entry(weight="much")))[0]


def test_the_longest_prompt_is_the_backends_context() -> None:
    more = {"model_info": {"max_input_tokens": 32768, "mode": "embedding", "supports_vision": True}}
    plan = carried(entry(more=more), entry(api_base="http://10.0.0.2:8000"))
    assert [backend.get("context_tokens") for backend in plan.pools[0]["backends"]] == [32768, None]
    assert sorted(remark.text for remark in plan.notes) == [
        "is 'image' in the pool's modalities",
        "is the backend's context_tokens: prompt and output together",
        "is the pool's kind: embedding",
    ]
    assert "is no positive whole number" in said(carried(entry(more={"model_info": {"max_input_tokens": "32k"}})))[0]


def test_parameters_of_all_engines_are_defaults_of_the_model() -> None:
    same = {"temperature": 0.2, "stop": "END", "max_tokens": 512, "reasoning_effort": "low"}
    plan = carried(entry(**same), entry(api_base="http://10.0.0.2:8000", **same))
    defaults = {"temperature": 0.2, "stop": ["END"], "reasoning_effort": "low"}
    assert plan.treatments == {"m": {"max_output_tokens": 512, "parameters": {"defaults": defaults}}}
    assert plan.left == []


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"temperature": 3}, "can be no default here"),
        ({"max_tokens": -1}, "no positive whole number"),
        ({"seed": "x"}, "can be no default"),
    ],
    ids=str,
)
def test_parameters_that_can_be_no_default_are_left(params: dict[str, object], says: str) -> None:
    plan = carried(entry(**params))
    assert (plan.treatments, says in said(plan)[0]) == ({}, True)


def test_parameters_that_differ_between_engines_are_left() -> None:
    plan = carried(entry(temperature=0.2), entry(api_base="http://10.0.0.2:8000"))
    assert (plan.treatments, "is not the same for all engines" in said(plan)[0]) == ({}, True)


def test_an_engine_named_twice_is_one_backend() -> None:
    plan = carried(entry(), entry(api_base="http://10.0.0.1:8000/"))
    assert len(plan.pools[0]["backends"]) == 1
    assert len(plan.notes) == 1


@pytest.mark.parametrize(
    ("provider", "dialect"), [("hosted_vllm", "vllm"), ("openai", "openai"), ("text-completion-openai", "openai"), ("llamafile", "openai")]
)
def test_providers_are_dialects(provider: str, dialect: str) -> None:
    assert carried(entry(model=f"{provider}/org/m")).pools[0] | {"backends": []} == {
        "name": "m", "model": "org/m", "dialect": dialect, "backends": [],
    }  # fmt: skip
    assert carried(entry(model="org/m", custom_llm_provider=provider)).pools[0]["model"] == "org/m"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry(model="bedrock/claude"), "no self-hosted engine"),
        (entry(model="gpt-4o"), "no self-hosted engine"),
        (entry(model="hosted_vllm/*"), "no self-hosted engine"),
        (entry("claude-*"), "is a pattern"),
        (entry("two words"), "is no name"),
        (entry("m" * 300), "is no name"),
        ({"model_name": "m", "litellm_params": {"model": "openai/gpt-4o"}}, "has no api_base"),
        ({"model_name": "m"}, "has no model"),
        ({"litellm_params": ENGINE}, "is no name"),
        ("text", "is no name"),
        (entry(api_base="ftp://x"), "is no address of an engine"),
        (entry(api_base="http://169.254.169.254"), "metadata"),
        (entry(more={"model_info": {"mode": "image_generation"}}), "no chat, completion, embedding or rerank"),
    ],
    ids=str,
)
def test_what_is_no_engine_of_ours_is_left(wrong: object, says: str) -> None:
    plan = carried(wrong)
    assert plan.pools == []
    assert len(plan.left) == 1
    assert says in said(plan)[0]


@pytest.mark.parametrize("key", ["weight", "order", "timeout", "n", "extra_headers", "tags", "made_up", "api_version"])
def test_parameters_without_a_counterpart_are_named(key: str) -> None:
    plan = carried(entry(**{key: 1}))
    assert len(plan.pools) == 1
    assert [line.partition(": ")[0] for line in said(plan)] == [f"model_list[0].litellm_params.{key}"]


def test_descriptions_need_no_place() -> None:
    assert carried(entry(more={"model_info": {"mode": "chat", "max_tokens": 5, "supports_vision": True, "base_model": "x"}})).left == []
    assert said(carried(entry(more={"model_info": {"access_groups": ["a"]}, "odd": 1}))) == [
        "model_list[0].model_info.access_groups: has no counterpart",
        "model_list[0].odd: has no counterpart",
    ]


@pytest.mark.parametrize("dummy", [None, "", "none", "EMPTY", "not-needed", "fake-key"])
def test_dummy_keys_are_none(dummy: str | None) -> None:
    assert "api_key" not in carried(entry(api_key=dummy)).pools[0]


def test_keys_are_names_of_variables() -> None:
    assert carried(entry(api_key="os.environ/KEY")).pools[0]["api_key"] == {"env": "KEY"}
    plan = carried(entry("4-bit", api_key="verysecret"))
    assert plan.pools[0]["api_key"] == {"env": "KEY_4_BIT_ENGINE_KEY"}
    assert "verysecret" not in str(plan)


@pytest.mark.parametrize("second", ["os.environ/OTHER", "another", None])
def test_a_pool_has_one_key(second: str | None) -> None:
    plan = carried(entry(api_key="os.environ/KEY"), entry(api_base="http://10.0.0.2:8000", api_key=second))
    assert "ask for one key" in said(plan)[0]
    plan = carried(entry(api_key="one"), entry(api_base="http://10.0.0.2:8000", api_key=second))
    assert "ask for one key" in said(plan)[0]


def test_limits_of_all_engines_add_up_and_of_some_are_left() -> None:
    other = "http://10.0.0.2:8000"
    plan = carried(entry(rpm=10, max_parallel_requests=3), entry(api_base=other, rpm=5, max_parallel_requests=4))
    assert [(limit["meter"], limit["amount"]) for limit in plan.limits] == [("requests", 15), ("concurrent_requests", 7)]
    plan = carried(entry(rpm=10), entry(api_base=other))
    assert plan.limits == []
    assert "limits some engines of 'm' and not all" in said(plan)[0]
    assert "is no positive whole number" in said(carried(entry(rpm="many")))[0]
    assert "is no limit that can be kept" in said(carried(entry(tpm=10**12)))[0]


def test_limits_beside_the_parameters_count_too() -> None:
    assert carried(entry(more={"rpm": 7})).limits[0]["amount"] == 7


@pytest.mark.parametrize("written", [0.0000005, "5e-7"])
def test_prices_are_dollars_per_million_tokens(written: object) -> None:
    (price,) = carried(entry(more={"model_info": {"input_cost_per_token": written, "cache_read_input_token_cost": 0}})).prices
    assert price["usd_per_mtok"] == {"uncached_input": "0.50", "cached_input": "0.00"}


def test_odd_prices_are_left() -> None:
    assert "is no price" in said(carried(entry(input_cost_per_token="free")))[0]
    assert "is no price" in said(carried(entry(input_cost_per_token=-1)))[0]
    two = carried(entry(input_cost_per_token=1e-7), entry(api_base="http://10.0.0.2:8000", input_cost_per_token=2e-7))
    assert "a model has one price" in said(two)[0]


@pytest.mark.parametrize("mode", ["chat", "completion", "embedding", "rerank"])
def test_the_mode_is_the_pools_kind(mode: str) -> None:
    plan = carried(entry(more={"model_info": {"mode": mode}}))
    assert (plan.pools[0]["kind"], plan.left) == (mode, [])
    (note,) = plan.notes
    assert note.text.startswith(f"is the pool's kind: {mode}")
    assert ("has no route" in note.text) is (mode == "rerank")
    assert "kind" not in carried(entry()).pools[0]


def test_what_a_model_takes_beside_text_is_the_pools_modalities() -> None:
    info = {"supports_vision": True, "supports_audio_input": True, "supports_function_calling": True, "supports_video_input": False}
    plan = carried(entry(more={"model_info": info}))
    assert plan.pools[0]["modalities"] == ["text", "image", "audio"]
    assert [remark.text.partition(":")[0] for remark in plan.notes] == [
        "supports_function_calling, supports_video_input",
        "is 'image' in the pool's modalities",
        "is 'audio' in the pool's modalities",
    ]
    assert "modalities" not in carried(entry(more={"model_info": {"supports_vision": False}})).pools[0]


def test_engines_of_one_pool_that_say_different_things_are_told() -> None:
    """The pool has one kind and one list of modalities, so what only some engines say is left with a remark."""
    more = {"model_info": {"mode": "embedding", "supports_vision": True}}
    silent = carried(entry(more=more), entry(api_base="http://10.0.0.2:8000"))
    assert (silent.pools[0]["kind"], silent.pools[0]["modalities"], silent.left) == ("embedding", ["text", "image"], [])
    otherwise = {"model_info": {"mode": "chat", "supports_vision": False}}
    plan = carried(entry(more=more), entry(api_base="http://10.0.0.2:8000", more=otherwise))
    assert {"kind", "modalities"} & plan.pools[0].keys() == set()
    assert [line.partition(": ")[2] for line in said(plan)] == [
        "is not the same for all engines of this model; write the pool's kind",
        "is not the same for all engines of this model; write the pool's modalities",
    ]
    same = carried(entry("a"), entry("b", more=more))
    assert (len(same.pools), same.pools[0]["kind"], same.left) == (1, "embedding", [])
    other = carried(entry("a", more={"model_info": {"mode": "chat"}}), entry("b", more=more))
    assert (other.pools[0]["kind"], said(other)) == ("chat", ["model_list[1].model_info: says otherwise of the engines of pool 'a'"])
