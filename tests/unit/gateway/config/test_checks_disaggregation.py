import pytest

from gateway.config.checks import RawSettings, disaggregation_problems
from policies.yaml.located import parse_yaml

TERMS = "{kv_bytes_token: 1000, bandwidth_gb_s: 10}"


def found(dialect: str, *roles: str, disaggregation: str | None = TERMS, more: str = "") -> list[str]:
    rows = "".join(f"  - {{id: b{at}, {role}}}\n" for at, role in enumerate(roles))
    on = "" if disaggregation is None else f"  disaggregation: {disaggregation}\n"
    text = f"pools:\n- name: p\n  dialect: {dialect}\n{on}{more}  backends:\n{rows}"
    return [str(problem) for problem in disaggregation_problems(RawSettings(parse_yaml(text.encode(), "t.yaml", {}), {}))]


P, D, B = "role: prefill", "role: decode", "role: both"
D_PORT = "role: decode, bootstrap_port: 1"
P_SGLANG = "role: prefill, bootstrap_port: 8998"


@pytest.mark.parametrize(
    ("dialect", "roles"),
    [("vllm", (P, D)), ("vllm", (B, B)), ("vllm", (P, B)), ("vllm", (B, D)), ("sglang", (P_SGLANG, D)), ("sglang", (P_SGLANG, D, B))],
)
def test_what_can_work_contradicts_nothing(dialect: str, roles: tuple[str, ...]) -> None:
    assert found(dialect, *roles) == []


@pytest.mark.parametrize(
    ("dialect", "roles", "what"),
    [
        ("vllm", (P,), "disaggregation: nobody generates from what is handed over"),
        ("vllm", (D,), "disaggregation: nobody computes prompts for others"),
        ("vllm", (B,), "disaggregation: one backend cannot share a request with itself"),
        ("sglang", (P_SGLANG, B), "disaggregation: nobody generates from what is handed over"),
        ("sglang", (B, D), "disaggregation: nobody computes prompts for others"),
        ("sglang", (P, D), "backends[0]: engines of dialect sglang are asked for KV at a port of their own"),
        (
            "sglang",
            (P_SGLANG, D_PORT),
            "backends[1].bootstrap_port: only prefill engines of dialect sglang have one",
        ),
        ("vllm", (P_SGLANG, D), "backends[0].bootstrap_port: only prefill engines of dialect sglang have one"),
        ("llamacpp", (B, B), "disaggregation: engines of dialect llamacpp cannot be told to share a request"),
    ],
)
def test_what_cannot_work_is_told(dialect: str, roles: tuple[str, ...], what: str) -> None:
    (problem,) = found(dialect, *roles)
    assert what in problem


def test_roles_need_a_pool_that_says_what_handing_over_costs() -> None:
    problems = found("vllm", P, D, disaggregation=None)
    assert len(problems) == 2
    assert "backends[0].role: prefill needs a pool with disaggregation" in problems[0]


def test_others_of_the_pool_may_be_found_elsewhere() -> None:
    assert found("vllm", P, more="  discover: {file: more.yaml}\n") == []
    assert found("vllm", more="") == []


def test_adapters_need_a_backend_that_serves_whole() -> None:
    loras = "  loras: [{name: a}]\n"
    (problem,) = found("vllm", P, D, more=loras)
    assert "requests with an adapter are served whole" in problem
    assert found("vllm", P, D, B, more=loras) == []
