import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
import tokenizers
import yaml

from backends.lora.digest import lora_digest
from gateway.cli import app, similar_questions
from gateway.cli.check import check, command_sections, reference_sections, schemas
from gateway.config.load import load_settings
from gateway.prompt.vocabulary import load_vocabulary
from policies.export import REGENERATE, with_sections
from policies.load import load_policies
from tests.command_line import Commands

ROOT = Path(check.__code__.co_filename).parents[2]
COMMANDS = (ROOT / "docs" / "reference" / "cli.md").read_text()
PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text()

SMALL_TOKENIZER = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()

SETTINGS = """\
pools:
  - name: chat
    model: smollm2-135m
    api_key: {env: TIDEGATE_TEST_ENGINE_KEY}
    backends:
      - {id: a, url: "http://10.0.0.1:8000"}
      - {id: b, url: "http://10.0.0.2:8000"}
"""
UNCOUNTED = (
    "note: pool chat has no tokenizer: limits on tokens, units and money hold a prompt by its bytes while it runs, about four times too "
    "much; "
    "copy the model's tokenizer.json and tokenizer_config.json here and name their folder with tokenizer: FOLDER "
    "(tidegate engine check looks where the engines say that theirs is), or write tokenizer: "
    "o200k_base, which is near for most models; both need pip install 'tidegate[tokens]'\n"
)
POLICY = "tenant: acme\nmodels: [{name: smollm2, pool: chat}]\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A sound configuration, and the current folder."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    (tmp_path / "policies" / "acme.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_TEST_ENGINE_KEY", "x")
    monkeypatch.delenv("TIDEGATE_ADMIN_TOKEN", raising=False)
    return tmp_path


def run(*arguments):
    return Commands().invoke(app, list(arguments))


def test_policies_of_the_database_are_checked_as_far_as_this_machine_has_them(site):
    (site / "tidegate.yaml").write_text(SETTINGS + "policies_from: database\n")
    first = load_policies(site / "policies", ["chat"]).digest
    assert run("check").stdout.splitlines()[-1] == f"ok, policies of the database {first}", "what the first start puts there"
    kept = site / "tidegate.policies" / "current"
    kept.mkdir(parents=True)
    (kept / "acme.yaml").write_text(POLICY.replace("pool: chat", "pool: gone"))
    assert "tidegate.policies/current/acme.yaml:2:26: models[0].pool: there is no pool 'gone'" in run("check").stderr
    (kept / "acme.yaml").unlink()
    kept.rmdir()
    (site / "policies" / "acme.yaml").unlink()
    (site / "policies").rmdir()
    result = run("check")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "ok, policies of the database, not known here")


def test_a_sound_configuration_is_summarised(site):
    result = run("check")
    assert result.exit_code == 0
    digest = load_policies(site / "policies", ["chat"]).digest
    assert result.stdout.splitlines() == [
        "data http://127.0.0.1:8080, admin http://127.0.0.1:8081, workers 1",
        "counters: in this process",
        "pool chat: smollm2-135m, revision 1, vllm, 2 backends",
        "  a http://10.0.0.1:8000",
        "  b http://10.0.0.2:8000",
        "tenant acme: smollm2 -> chat",
        "every other tenant: no policy, so no model",
        f"ok, policies {digest}",
    ]
    assert result.stderr == UNCOUNTED


def test_every_mistake_of_every_file_is_printed_with_its_place(site):
    (site / "tidegate.yaml").write_text(SETTINGS.replace("id: b", "id: a") + "workrs: 2\n")
    (site / "policies" / "acme.yaml").write_text(POLICY.replace("pool: chat", "pool: chta") + "max_output_tokens: 4k\n")
    result = run("check", "-c", "tidegate.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "policies/acme.yaml:2:26: models[0].pool: there is no pool 'chta'; did you mean 'chat'?",
        "policies/acme.yaml:3:1: max_output_tokens: must be a whole number, not '4k'; write a whole number without quotes or unit",
        "tidegate.yaml:7:10: pools[0].backends[1].id: 'a' is the id of pools[0].backends[0] already; ids are unique in the whole fleet",
        "tidegate.yaml:8:1: workrs: is no known key; did you mean workers?",
        "4 problems",
    ]


def test_files_elsewhere_are_named_as_given(site, monkeypatch):
    (site / "tidegate.yaml").write_text("pools: []\n")
    monkeypatch.chdir(site / "policies")
    result = run("check", "-c", str(site / "tidegate.yaml"))
    assert result.stderr.splitlines()[0].startswith(f"{site}/tidegate.yaml:1:1: pools: ")


def test_a_backends_file_that_is_not_there_is_no_matter_of_the_settings_file(site):
    (site / "tidegate.yaml").write_text("pools:\n  - {name: chat, model: m, dialect: vllm, discover: {file: night.yaml}}\n")
    result = run("check")
    assert result.exit_code == 1
    assert "night.yaml:1:1: cannot be read: No such file or directory; make the file, or mend the name" in result.stderr.splitlines()


def test_settings_that_cannot_be_read(site):
    result = run("check", "-c", "none.yaml")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "none.yaml:1:1: cannot be read: No such file or directory; run the command in the folder of that file, or name the file with -c",
        "1 problem",
    ]


def test_a_missing_policy_folder_is_told_once(site):
    (site / "policies" / "acme.yaml").unlink()
    (site / "policies").rmdir()
    assert run("check").stderr.splitlines()[-1] == "1 problem"


def test_a_secret_that_is_not_here_is_a_note(site, monkeypatch):
    monkeypatch.delenv("TIDEGATE_TEST_ENGINE_KEY")
    result = run("check")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: pools[0].api_key: environment variable TIDEGATE_TEST_ENGINE_KEY is empty")


def test_a_client_of_kubernetes_that_is_not_here_is_a_note(site, monkeypatch):
    more = "    discover: {kubernetes: {service: chat}}\n"
    (site / "tidegate.yaml").write_text(SETTINGS + more)
    here = run("check")
    assert "more from Kubernetes chat" in here.stdout
    assert "lightkube" not in here.stderr
    monkeypatch.setattr("gateway.cli.check.find_spec", lambda name: None)
    missing = run("check")
    assert missing.exit_code == 0
    assert "note: pools[0].discover.kubernetes needs lightkube: pip install 'tidegate[kubernetes]'" in missing.stderr


def test_a_backend_in_two_places_is_told_as_the_gateway_tells_it_with_its_place(site):
    more = """\
    discover: {file: more.yaml}
  - name: other
    model: m
    discover: {file: other.yaml}
"""
    (site / "tidegate.yaml").write_text(SETTINGS + more)
    (site / "more.yaml").write_text('backends:\n  - {id: b, url: "http://10.0.0.9:8000"}\n  - {id: c, url: "http://10.0.0.1:8000"}\n')
    (site / "other.yaml").write_text('backends:\n  - {id: c, url: "http://10.0.0.1:8000"}\n')
    result = run("check")
    assert result.exit_code == 1
    file = "the pool's discover.file"
    assert result.stderr.splitlines() == [
        f"more.yaml:2:5: backends[0]: backend 'b' is in tidegate.yaml (pool chat) and in {file} (pool chat); "
        "the first one counts, give the other one its own id",
        f"more.yaml:3:5: backends[1]: backend 'c' of {file} has the URL of backend 'a' of tidegate.yaml (pool chat); "
        "one engine counts as two, remove one of them",
        f"other.yaml:2:5: backends[0]: backend 'c' is in {file} (pool chat) and in {file} (pool other); "
        "the first one counts, give the other one its own id",
        "3 problems",
    ]


def test_one_url_twice_in_the_settings_is_told_with_its_place(site):
    (site / "tidegate.yaml").write_text(SETTINGS.replace("10.0.0.2", "10.0.0.1"))
    result = run("check")
    assert result.exit_code == 1
    assert result.stderr.startswith("tidegate.yaml:7:9: pools[0].backends[1]: backend 'b' of tidegate.yaml has the URL of backend 'a'")


TOKEN = "secrets: {admin_token: {env: TIDEGATE_ADMIN_TOKEN}}\n"


def test_an_admin_token_that_a_start_would_refuse_is_a_mistake_and_a_missing_one_a_note(site, monkeypatch):
    (site / "tidegate.yaml").write_text(SETTINGS + TOKEN)
    monkeypatch.setenv("TIDEGATE_ADMIN_TOKEN", "short")
    result = run("check")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == (
        "tidegate.yaml:8:11: secrets.admin_token: holds fewer than 24 ASCII characters; make one with: openssl rand -hex 32"
    )
    monkeypatch.setenv("TIDEGATE_ADMIN_TOKEN", "x" * 24)
    assert (run("check").exit_code, run("check").stderr) == (0, UNCOUNTED)
    monkeypatch.delenv("TIDEGATE_ADMIN_TOKEN")
    result = run("check")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: secrets.admin_token: environment variable TIDEGATE_ADMIN_TOKEN is empty")


def test_an_admin_token_that_the_settings_do_not_name_is_a_note(site, monkeypatch):
    monkeypatch.setenv("TIDEGATE_ADMIN_TOKEN", "x" * 24)
    result = run("check")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: TIDEGATE_ADMIN_TOKEN is set here, but secrets.admin_token is not")


def test_wrong_usage():
    assert run("check", "--no-such-option").exit_code == 2


def test_the_written_schemas_are_the_models():
    for name, text in schemas().items():
        assert (ROOT / "docs" / "schema" / name).read_text() == text, f"run: {REGENERATE}"
        jsonschema.Draft202012Validator.check_schema(check_json(text))


def check_json(text):
    return yaml.safe_load(text)  # JSON is YAML


def test_the_reference_is_made_from_the_models():
    assert with_sections(PAGE, reference_sections()) == PAGE, f"run: {REGENERATE}"
    assert with_sections(COMMANDS, command_sections()) == COMMANDS, f"run: {REGENERATE}"


def test_the_pages_own_examples_load(tmp_path):
    settings, policy = re.findall(r"<!-- begin example [a-z]+ -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(settings)
    (tmp_path / "policies" / "acme.yaml").write_text(policy)
    loaded = load_settings(tmp_path / "tidegate.yaml", {})
    assert load_policies(loaded.policies_dir, *loaded.policy_targets).for_tenant("acme") is not None


def test_export_writes_schemas_and_refreshes_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(re.sub(r"(<!-- begin [a-z ]+ -->\n).*?(<!-- end)", r"\1\2", PAGE, flags=re.DOTALL))
    assert page.read_text() != PAGE
    result = run("export-schema", "--folder", str(tmp_path / "schema"), "--reference", str(page))
    assert result.exit_code == 0
    assert page.read_text() == PAGE
    assert sorted(os.listdir(tmp_path / "schema")) == sorted(schemas())


def test_export_without_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("export-schema").exit_code == 0
    assert sorted(os.listdir(tmp_path / "docs")) == ["schema"]


def test_pools_whose_prompts_nobody_counts_are_a_note_and_others_are_not(site):
    (site / "model").mkdir()
    (site / "model" / "tokenizer.json").write_text(SMALL_TOKENIZER)
    (site / "tidegate.yaml").write_text(SETTINGS + "    tokenizer: model\n")
    assert (run("check").exit_code, run("check").stderr) == (0, "")
    more = "  - {name: embed, model: e, backends: []}\n  - {name: other, model: o, backends: []}\n"
    (site / "tidegate.yaml").write_text(SETTINGS + "    tokenizer: model\n" + more)
    assert run("check").stderr.startswith("note: pools embed, other have no tokenizer: ")


def test_a_tokenizer_that_a_start_would_fail_on_is_a_mistake(site):
    """Each kind of wrong one: nothing there, no tokenizer, a template that is none; with where it is written, and what to write."""
    model = site / "model"
    model.mkdir()
    (site / "tidegate.yaml").write_text(SETTINGS + "    tokenizer: model\n")
    wrong = [
        ({}, "cannot be read"),
        ({"tokenizer.json": "{}"}, "cannot be read"),
        ({"tokenizer.json": SMALL_TOKENIZER, "chat_template.jinja": "{% for"}, "the chat template cannot be compiled"),
    ]
    for files, why in wrong:
        for file, text in files.items():
            (model / file).write_text(text)
        result = run("check")
        assert result.exit_code == 1
        line = result.stderr.splitlines()[0]
        assert line.startswith("tidegate.yaml:8:5: pools[0].tokenizer: "), line
        assert why in line
        assert line.endswith("name the served model's folder or tokenizer.json, or one of o200k_base, cl100k_base")


@pytest.mark.parametrize(("meter", "amount", "noted"), [("cost_nanousd", 5_000_000_000, True), ("cost_usd", "5", False)])
def test_the_older_name_of_money_in_the_import_file_is_pointed_out(site, meter, amount, noted):
    limit = {"scope": {"level": "global"}, "meter": meter, "window": "day", "amount": amount}
    (site / "tidegate-import.json").write_text(json.dumps({"format": "tidegate-import/1", "limits": [limit]}))
    done = run("check")
    assert done.exit_code == 0
    assert ("1 limit on cost_nanousd, the older name" in done.stderr) is noted


def test_what_newcomers_write_first_is_answered_with_the_remedy(site):
    (site / "policies" / "acme.yaml").write_text("tenant: *\nmodels: []\n")
    assert "policies/acme.yaml:1:9: is not valid YAML" in run("check").stderr
    assert 'a text that begins with * needs quotes, as "*"' in run("check").stderr
    (site / "policies" / "acme.yaml").write_text(POLICY.replace("}", ", fallback: [big]}"))
    said = run("check").stderr
    assert "models[0].fallback[0]: must be a mapping, not 'big'; write key: value lines" in said


def test_what_loads_and_is_hardly_meant_is_a_note(site):
    second = '  - {name: other, model: m, backends: [{id: z, url: "http://10.0.0.1:8000"}]}\n'
    (site / "tidegate.yaml").write_text(SETTINGS + second)
    (site / "policies" / "acme.yaml").write_text("tenant: acme\nmodels: []\n")
    result = run("check")
    assert result.exit_code == 0, result.output
    assert "note: http://10.0.0.1:8000 is in the pools chat, other: each of them takes the engine's whole capacity" in result.stderr
    closed = "note: policies/acme.yaml:2:1: models: the policy of tenant acme has no model, so every request is refused; list models"
    assert closed in result.stderr


@pytest.mark.parametrize(
    ("semantic", "said"),
    [
        ("{}", "wrong_per_hit 1.0% is what it aims at"),
        ("{decision: threshold, threshold: 0.85}", "nothing bounds the wrong ones; with a threshold of 0.8"),
    ],
)
def test_a_policy_that_answers_similar_questions_is_told_how_many_answers_were_wrong(site, monkeypatch, semantic, said):
    text = f"tenant: acme\nmodels: [{{name: m, pool: chat}}]\ncache: {{semantic: {semantic}}}\n"
    (site / "policies" / "acme.yaml").write_text(text)
    for command in (["check"], ["policy", "check"]):
        done = run(*command)
        assert done.exit_code == 0, done.output
        assert "note: the policy of tenant acme answers similar questions: " + said in done.stderr
        assert "extra semantic" not in done.stderr
    monkeypatch.setattr(similar_questions, "PACKAGES", ("no_such_package",))
    assert "similar questions need the extra semantic, which is not installed here" in run("check").stderr


def test_the_figures_of_similar_questions_are_those_of_the_bench():
    rows = json.loads((ROOT / "bench" / "results" / "cache.json").read_text())
    found = {(row["subject"], row["metric"]): row["value"] for row in rows}
    for name, (wrong, upper) in similar_questions.MEASURED.items():
        subject = f"verified; {name}, kept-away"
        assert round(100 * found[subject, "wrong_per_hit"], 2) == wrong
        assert round(100 * found[subject, "wrong_per_hit_upper"], 2) == upper
    for threshold, shares in similar_questions.STATIC.items():
        subjects = [f"guard + threshold {threshold:.2f}; {name}, kept-away" for name in similar_questions.MEASURED]
        assert [round(100 * found[subject, "wrong_per_hit"], 1) for subject in subjects] == list(shares)


def test_a_policy_of_a_tenant_that_the_database_lacks_is_a_note(site):
    assert "there is no tenant" not in run("check").stderr, "there is no database yet"
    (site / "tidegate.pepper").write_text("0" * 64)
    assert (made := run("tenant", "create", "acmee", "--offline")).exit_code == 0, made.output
    said = "policies/acme.yaml:1:1: tenant: there is no tenant 'acme' in the database; did you mean 'acmee'? `tidegate tenant create acme`"
    for command in (["check"], ["policy", "check"]):
        done = run(*command)
        assert (done.exit_code, said in done.stderr) == (0, True), done.stderr
    run("tenant", "create", "acme", "--offline")
    assert "there is no tenant" not in run("check").stderr + run("policy", "check").stderr


def test_a_body_that_no_policy_can_allow_is_a_note(site):
    (site / "policies" / "acme.yaml").write_text("tenant: acme\nmodels: [{name: m, pool: chat}]\ncaps: {body_bytes: 100000000}\n")
    result = run("check")
    assert result.exit_code == 0, result.output
    assert "note: the policy of tenant acme allows bodies of 100000000 bytes (caps.body_bytes) and" in result.stderr
    assert "data.limits.largest_body_bytes allows 68157440; raise the setting" in result.stderr


def test_mistakes_and_notes_are_told_to_programs(site):
    good = json.loads(run("check", "--format", "json").stdout)
    assert (good["ok"], good["problems"]) == (True, [])
    assert any("has no tokenizer" in note for note in good["notes"])
    (site / "tidegate.yaml").write_text(SETTINGS + "workrs: 2\n")
    result = run("check", "--format", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    (problem,) = json.loads(result.stdout)["problems"]
    line = SETTINGS.count("\n") + 1
    assert problem == {
        "file": "tidegate.yaml", "line": line, "column": 1, "path": "workrs", "message": "is no known key", "hint": "did you mean workers?",
    }  # fmt: skip
    log = json.loads(run("check", "--format", "sarif").stdout)
    (found,) = log["runs"][0]["results"]
    assert (log["version"], found["level"], found["ruleId"]) == ("2.1.0", "error", "mistake")
    assert found["message"]["text"] == "workrs: is no known key; did you mean workers?"
    place = found["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == ("tidegate.yaml", {"startLine": line, "startColumn": 1})


def test_a_mistake_in_a_variable_is_shown_at_the_settings_that_it_overrides(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE__WORKERS", "many")
    text = Commands().invoke(app, ["check"])
    assert (text.exit_code, text.stderr.startswith("environment variable TIDEGATE__WORKERS: workers: must be")) == (1, True)
    results = json.loads(Commands().invoke(app, ["check", "--format", "sarif"]).stdout)["runs"][0]["results"]
    place = results[0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("tidegate.yaml", 1)
    assert "environment variable TIDEGATE__WORKERS" in results[0]["message"]["text"]


def test_a_variable_that_names_no_setting_is_a_note(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE__LOG__LEVLE", "debug")
    done = Commands().invoke(app, ["check"])
    assert (done.exit_code, "names no setting, so it changes nothing; did you mean TIDEGATE__LOG__LEVEL?" in done.stderr) == (0, True)


def test_a_tokenizer_that_lies_on_this_machine_is_named_with_what_to_write(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = site / "hub" / "models--smollm2-135m" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    (snapshot / "tokenizer.json").write_text(SMALL_TOKENIZER)
    monkeypatch.setenv("HF_HUB_CACHE", str(site / "hub"))
    done = Commands().invoke(app, ["check"])
    assert done.exit_code == 0
    assert done.stderr.endswith(f"; if {snapshot} has the files that the engines serve, write tokenizer: {snapshot}\n")
    (snapshot / "tokenizer.json").write_text("{}")
    load_vocabulary.cache_clear()  # as in a new process
    assert f"write tokenizer: {snapshot} (tokenizer {snapshot}/tokenizer.json cannot be read" in Commands().invoke(app, ["check"]).stderr


def test_a_pool_at_a_hosted_provider_is_noted_and_own_machines_in_a_cloud_are_not(site: Path) -> None:
    urls = ("https://api.openai.com", "http://10.0.0.1:8000", "http://openai.com.internal:8000")
    backends = "".join(f'      - {{id: b{at}, url: "{url}"}}\n' for at, url in enumerate(urls))
    (site / "tidegate.yaml").write_text(f"pools:\n  - name: chat\n    model: m\n    dialect: openai\n    backends:\n{backends}")
    done = Commands().invoke(app, ["check"])
    assert (done.exit_code, "note: pool chat is at api.openai.com: Tidegate is for self-hosted engines" in done.stderr) == (0, True)


def test_an_adapter_that_can_be_read_here_has_the_digest_of_the_settings(site):
    folder = site / "support-bot"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    right = lora_digest(folder)

    def checked(digest, path):
        loras = f"    loras:\n      - {{name: support-bot, digest: {digest}, path: {path}}}\n"
        (site / "tidegate.yaml").write_text(SETTINGS + loras)
        return run("check")

    assert f"adapter support-bot, {right[:12]}, {folder}\n" in checked(right, folder).output
    elsewhere = checked("1a" * 32, "/adapters/support-bot")
    assert elsewhere.exit_code == 0
    assert "/adapters/support-bot (not readable here, so its digest is not checked)" in elsewhere.output
    wrong = checked("1a" * 32, folder)
    assert wrong.exit_code == 1
    assert f"the files in {folder} have the digest {right[:12]}… and not 1a1a1a1a1a1a…" in wrong.output
    assert right in wrong.output
    assert "tidegate.yaml:9:29: pools[0].loras[0].digest" in wrong.output
    (folder / "two\nlines").touch()
    assert "rename it" in checked(right, folder).output


def test_pages_in_messages_are_addresses(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = site / "tidegate.yaml"
    settings.write_text(SETTINGS.replace("http://10.0.0.1:8000", "https://api.openai.com"))

    def said(*form: str) -> str:
        result = run("check", *form)
        return " ".join((result.stdout + result.stderr).split())

    page = Path(__file__).parents[4] / "docs" / "reference" / "engines.md"
    assert f"see {page.as_uri()}" in said()
    assert f"see {page.as_uri()}" in said("--format", "json")
    settings.write_text(f"docs_url: https://docs.example.com/tidegate\n{settings.read_text()}")
    for form in ((), ("--format", "json"), ("--format", "sarif")):
        assert "see https://docs.example.com/tidegate/reference/engines.md" in said(*form)
    monkeypatch.setenv("TIDEGATE_DOCS_URL", "https://other.example/")
    assert "see https://other.example/reference/engines.md" in said()
    monkeypatch.setenv("TIDEGATE_DOCS_URL", "other.example")
    assert "environment variable TIDEGATE_DOCS_URL: docs_url: is no address of a page; write https://host/path" in said()


def test_pages_in_mistakes_are_addresses_though_the_settings_do_not_load(site: Path) -> None:
    settings = site / "tidegate.yaml"
    pools = "pools: [{name: chat, model: m, dialect: openai, lora_folder: /a, backends: []}]\n"
    settings.write_text(f"docs_url: https://docs.example.com/\n{pools}")
    result = run("check")
    assert result.exit_code == 1
    assert "see https://docs.example.com/reference/engines.md for what can" in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", [("check",), ("policy", "check")])
def test_a_guard_rule_asks_a_detector_that_there_is(site, command):
    rule = "{id: judge, kind: detector, mode: flag, detector: gaurd}"
    (site / "policies" / "acme.yaml").write_text(f"{POLICY}guards: {{rules: [{rule}]}}\n")
    (site / "tidegate.yaml").write_text(
        f"{SETTINGS}guards: {{detectors: {{guard: {{kind: guard_model, pool: chat, form: llama_guard}}}}}}\n"
    )
    refused = run(*command)
    assert refused.exit_code == 1
    assert "acme.yaml:3:" in refused.output
    assert "there is no detector 'gaurd' in guards.detectors of tidegate.yaml; did you mean 'guard'?" in refused.output
    (site / "policies" / "acme.yaml").write_text(f"{POLICY}guards: {{rules: [{rule.replace('gaurd', 'guard')}]}}\n")
    assert run(*command).exit_code == 0
