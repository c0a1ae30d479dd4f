"""`tidegate import litellm` as a person runs it: the files load, nothing is dropped unsaid, no secret comes out."""

import json
from pathlib import Path

import pytest

from gateway.cli import app
from gateway.config.load import load_settings
from policies.load import load_policies
from tests.command_line import Commands

WHOLE = """\
model_list:
  - model_name: qwen-chat
    litellm_params:
      model: hosted_vllm/Qwen/Qwen3-8B
      api_base: http://10.0.0.1:8000/v1
      api_key: os.environ/VLLM_KEY
      rpm: 600
      tpm: 200000
      input_cost_per_token: 1e-7
      output_cost_per_token: 0.0000004
    model_info: {id: qwen-a, mode: chat, max_tokens: 32768, supports_function_calling: true}
  - model_name: qwen-chat
    litellm_params:
      model: hosted_vllm/Qwen/Qwen3-8B
      api_base: http://10.0.0.2:8000/v1/
      api_key: os.environ/VLLM_KEY
      rpm: 400
      tpm: 100000
  - model_name: bge
    litellm_params: {model: openai/BAAI/bge-small, api_base: "http://10.0.0.3:9000/embed/v1", api_key: none}
    model_info: {mode: embedding}
router_settings:
  routing_strategy: least-busy
  model_group_alias: {text-embedding-3-small: bge}
litellm_settings:
  request_timeout: 300
  max_budget: 250.5
  budget_duration: 30d
general_settings:
  global_max_parallel_requests: 64
"""
TEAMS = [
    {
        "team_id": "t-1", "team_alias": "Search & Ads", "models": ["qwen-chat"], "rpm_limit": 100, "tpm_limit": None,
        "max_budget": 10.0, "budget_duration": "1d", "spend": 3.2, "blocked": False, "metadata": {"a": 1},
    },
    {"team_id": "t-2", "team_alias": "Research", "models": [], "max_parallel_requests": 5},
]  # fmt: skip
KEYS = {
    "keys": [
        {"token": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b", "key_name": "sk-...Ab1c", "key_alias": "ci",
         "team_id": "t-1", "models": [], "tpm_limit": 5000, "max_budget": 1.5, "expires": "2027-01-01T00:00:00Z"},
        {"token": "aa", "key_alias": "alone", "team_id": None, "models": ["bge"], "blocked": None},
        {"token": "bb", "key_alias": "off", "team_id": "t-2", "blocked": True},
    ],
    "total_count": 3,
}  # fmt: skip


def run(*arguments: object):
    return Commands().invoke(app, ["import", "litellm", *map(str, arguments)])


def checked(folder: Path, **environ: str) -> str:
    """What `tidegate check` says of the written files."""
    result = Commands().invoke(app, ["check", "-c", str(folder / "tidegate.yaml")], env=environ)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_whole_configuration_is_carried_and_loads(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WHOLE)
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "left: 0" in result.output
    assert "pool qwen-chat: Qwen/Qwen3-8B, revision 1, vllm, 2 backends" in checked(tmp_path / "out")
    settings = load_settings(tmp_path / "out" / "tidegate.yaml")
    chat, bge = settings.pools
    assert [(b.id, b.url) for b in chat.backends] == [("qwen-a", "http://10.0.0.1:8000"), ("qwen-chat-2", "http://10.0.0.2:8000")]
    assert chat.api_key is not None
    assert chat.api_key.env == "VLLM_KEY"
    assert (bge.dialect, bge.model, bge.api_key, bge.backends[0].url) == ("openai", "BAAI/bge-small", None, "http://10.0.0.3:9000/embed")
    assert settings.engines.plain_timeout_s == 300
    policies = load_policies(settings.policies_dir, *settings.policy_targets)
    everyone = policies.for_tenant("anybody")
    assert everyone is not None
    assert {name: rule.pool for name, rule in everyone.models.items()} == {
        "qwen-chat": "qwen-chat",
        "bge": "bge",
        "text-embedding-3-small": "bge",
    }
    later = json.loads((tmp_path / "out" / "tidegate-import.json").read_text())
    model, world = {"level": "model", "name": "qwen-chat"}, {"level": "global", "name": ""}
    assert later["limits"] == [
        {"scope": model, "meter": "requests", "window": "minute", "amount": 1000},
        {"scope": model, "meter": "tokens", "window": "minute", "amount": 300_000},
        {"scope": world, "meter": "cost_usd", "window": "month", "amount": "250.50"},
        {"scope": world, "meter": "concurrent_requests", "window": "now", "amount": 64},
    ]
    rates = {"uncached_input": "0.10", "cached_input": "0.10", "output": "0.40", "reasoning": "0.40"}
    assert later["prices"] == [{"model": "qwen-chat", "revision": "*", "usd_per_mtok": rates}]


def test_teams_become_tenants_and_keys_are_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WHOLE)
    (tmp_path / "teams.json").write_text(json.dumps(TEAMS, indent=1))
    (tmp_path / "keys.json").write_text(json.dumps(KEYS))
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out", "--teams", tmp_path / "teams.json", "--keys", tmp_path / "keys.json")
    assert result.exit_code == 1
    assert [line for line in result.output.splitlines() if line.startswith("left:")] == [
        f"left: {tmp_path}/teams.json:1: teams: metadata (1 entries) has no counterpart"
    ]
    assert "spend (1 entries) is LiteLLM's own record" in result.output
    checked(tmp_path / "out")
    later = json.loads((tmp_path / "out" / "tidegate-import.json").read_text())
    assert [tenant["name"] for tenant in later["tenants"]] == ["search-ads", "research", "without-team"]
    tenant = {"level": "tenant", "name": "search-ads"}
    assert {"scope": tenant, "meter": "requests", "window": "minute", "amount": 100} in later["limits"]
    assert {"scope": tenant, "meter": "cost_usd", "window": "day", "amount": "10.00"} in later["limits"]
    ci, alone = later["keys"]
    assert (ci["tenant"], ci["label"], ci["expires_at"]) == ("search-ads", "ci", "2027-01-01T00:00:00Z")
    assert {"meter": "tokens", "window": "minute", "amount": 5000} in ci["limits"]
    assert alone == {"tenant": "without-team", "project": "default", "label": "alone", "models": ["bge"]}
    settings = load_settings(tmp_path / "out" / "tidegate.yaml")
    policies = load_policies(settings.policies_dir, *settings.policy_targets)
    mine, theirs = policies.for_tenant("search-ads"), policies.for_tenant("research")
    assert mine is not None
    assert theirs is not None
    assert (set(mine.models), len(theirs.models)) == ({"qwen-chat"}, 3)


def test_no_secret_comes_out(tmp_path: Path) -> None:
    canaries = [f"sk-canary{at:02d}ABCDEFGHIJKLMNOPQRSTUVWX" for at in range(12)]
    (tmp_path / "config.yaml").write_text(f"""\
model_list:
  - model_name: one
    litellm_params: {{model: hosted_vllm/m, api_base: "http://10.0.0.1:8000", api_key: {canaries[0]}}}
  - model_name: one
    litellm_params: {{model: hosted_vllm/m, api_base: "http://10.0.0.2:8000", api_key: {canaries[1]}}}
  - model_name: two
    litellm_params: {{model: openai/m, api_base: "http://user:{canaries[2]}@10.0.0.1:8000/v1"}}
  - model_name: three
    litellm_params: {{model: azure/m, api_base: "https://a.openai.azure.com", api_key: {canaries[3]}, azure_ad_token: {canaries[4]}}}
  - model_name: four
    litellm_params: {{model: hosted_vllm/m2, api_base: "http://10.0.0.4:8000", extra_headers: {{x-key: {canaries[5]}}}}}
router_settings: {{redis_host: r, redis_password: {canaries[6]}}}
litellm_settings: {{cache_params: {{password: {canaries[7]}}}, unknown_thing: {canaries[8]}}}
general_settings: {{master_key: {canaries[9]}, database_url: "postgresql://u:{canaries[10]}@h/d"}}
environment_variables: {{OPENAI_API_KEY: {canaries[11]}}}
""")
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 1
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert [canary for canary in canaries if canary in result.output + written or canary[3:11] in result.output + written] == []
    assert "ONE_ENGINE_KEY" in written
    checked(tmp_path / "out")
    for path in ("general_settings.master_key", "router_settings.redis_password", "environment_variables"):
        assert f"{path}: " in result.output


def test_addresses_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "model_list:\n  - model_name: m\n    litellm_params: {model: hosted_vllm/m, api_base: os.environ/VLLM_URL}\n"
    )
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "needs the variable VLLM_URL" in result.output
    assert "http://10.9.9.9:8000" in checked(tmp_path / "out", VLLM_URL="http://10.9.9.9:8000")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "must be a mapping"),
        ("a: [\n", "config.yaml:"),
        ("pools: []\n", "has no model_list"),
        ("model_list: *nowhere\n", "config.yaml:1"),
    ],
)
def test_input_that_cannot_be_read(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert says in result.output
    assert run(tmp_path / "nowhere.yaml", "--out", tmp_path / "out").exit_code == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WHOLE)
    (tmp_path / "tidegate.yaml").write_text("mine")
    result = run(tmp_path / "config.yaml", "--out", tmp_path)
    assert result.exit_code == 2
    assert "would overwrite tidegate.yaml" in result.output
    assert (tmp_path / "tidegate.yaml").read_text() == "mine"
    assert not (tmp_path / "policies").exists()


def test_a_proxy_of_cloud_services_alone_has_nothing_for_us(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model_list:\n  - {model_name: gpt, litellm_params: {model: azure/gpt}}\n")
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (1, False)
    assert "config.yaml:2: model_list[0].litellm_params.model: is no self-hosted engine" in result.output


TODAY = """\
model_list:
  - model_name: chat
    litellm_params: {model: hosted_vllm/big, api_base: "http://10.0.0.1:8000/v1", weight: 3, temperature: 0.2, max_tokens: 1024}
    model_info: {max_input_tokens: 32768}
  - model_name: chat
    litellm_params: {model: hosted_vllm/other, api_base: "http://10.0.0.2:8000/v1", temperature: 0.2, max_tokens: 1024}
  - model_name: small
    litellm_params: {model: hosted_vllm/small, api_base: "http://10.0.0.3:8000/v1"}
router_settings:
  timeout: 300
  routing_strategy: least-busy
  model_group_alias: {gpt-4o: chat}
  fallbacks: [{chat: [small]}]
litellm_settings:
  request_timeout: 600
  context_window_fallbacks: [{small: [chat]}]
"""


def test_features_of_today_are_carried_and_load(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(TODAY)
    teams = [{"team_id": "t", "team_alias": "t", "models": ["s*"]}, {"team_id": "u", "team_alias": "u", "models": ["gpt-4o", "chat"]}]
    (tmp_path / "teams.json").write_text(json.dumps(teams))
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out", "--teams", tmp_path / "teams.json")
    left = [line for line in result.output.splitlines() if line.startswith("left: ")]
    assert (result.exit_code, len(left)) == (1, 3), result.output
    assert all("the fallback of " in line and "is not listed" in line for line in left), "a team may not use the fallback's target"
    checked(tmp_path / "out")
    settings = load_settings(tmp_path / "out" / "tidegate.yaml")
    assert (settings.engines.plain_timeout_s, settings.pools[0].backends[0].context_tokens) == (300, 32768)
    policies = load_policies(settings.policies_dir, *settings.policy_targets)
    everyone, small, alias = (policies.for_tenant(name) for name in ("anybody", "t", "u"))
    assert everyone is not None
    assert small is not None
    assert alias is not None
    assert (set(everyone.models), set(small.models), set(alias.models)) == ({"chat", "gpt-4o", "small"}, {"small"}, {"gpt-4o", "chat"})
    written = (tmp_path / "out" / "policies" / "everyone.yaml").read_text()
    assert "alias_of: chat" in written
    assert "routing: least_load" in written
    assert [policy.treating("default", "chat").max_output_tokens for policy in (everyone, alias)] == [1024, 1024]


def test_the_admin_token_is_referred_to_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WHOLE)
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert f"needs the file {tmp_path}/out/admin-token, the admin token: (umask 077; openssl rand -hex 32 > " in result.output
    settings = load_settings(tmp_path / "out" / "tidegate.yaml")
    assert settings.secrets.admin_token is not None
    assert (settings.secrets.admin_token.file, (tmp_path / "out" / "admin-token").exists()) == ("admin-token", False)


GUARDED = """\
model_list:
  - model_name: qwen
    litellm_params: {model: hosted_vllm/Qwen/Qwen3-8B, api_base: "http://10.0.0.1:8000"}
guardrails:
  - guardrail_name: pii
    litellm_params:
      guardrail: presidio
      mode: [pre_call, post_call]
      default_on: true
      pii_entities_config: {EMAIL_ADDRESS: MASK, PERSON: MASK}
      presidio_analyzer_api_base: os.environ/ANALYZER
  - guardrail_name: moderation
    litellm_params: {guardrail: openai_moderation, mode: pre_call, api_key: os.environ/OPENAI_API_KEY}
  - guardrail_name: bedrock
    litellm_params: {guardrail: bedrock, mode: pre_call}
"""


def test_guardrails_are_written_as_rules_and_detectors_that_load(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(GUARDED)
    result = run(tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "needs the variable ANALYZER" in result.output
    assert "3 guard rules; left: 1" in result.output
    assert "guardrails[2].litellm_params.guardrail: is a service with a protocol of its own" in result.output
    checked(tmp_path / "out", ANALYZER="http://127.0.0.1:5002", OPENAI_API_KEY="k")
    settings = load_settings(tmp_path / "out" / "tidegate.yaml", {"ANALYZER": "http://127.0.0.1:5002"})
    assert settings.detector_names == {"pii", "moderation"}
    everyone = load_policies(settings.policies_dir, *settings.policy_targets, None, settings.detector_names).for_tenant("anybody")
    assert everyone is not None
    assert everyone.guards is not None
    choice = everyone.guards.of("default", "qwen", "")
    standing = choice.applied()
    assert standing is not None
    assert [rule.id for rule in standing.rules] == ["pii", "pii-2"]
    assert choice.ids == {"pii", "pii-2", "moderation"}
