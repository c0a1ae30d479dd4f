import random

import pytest

from policies.yaml.located import parse_yaml
from policies.yaml.validate import literal_secrets, looks_secret, names_a_secret

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.parametrize(
    "text",
    [
        "gw_live_EXAMPLE000_EXAMPLEexampleEXAMPLEexample",
        "sk-EXAMPLEexampleEXAMPLE1234",
        "Bearer sk-ant-EXAMPLE-example-EXAMPLE-1234",
        "hf_EXAMPLEexampleEXAMPLEexample",
        "ghp_EXAMPLEexampleEXAMPLEexample",
        "AKIA" + "EXAMPLE0" * 2,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB",
        "eyJEXAMPLEexample.eyJEXAMPLEexample.EXAMPLE",
    ],
)
def test_issued_keys_are_known_by_their_prefix(text):
    assert looks_secret(text, may_be_random=True)


@pytest.mark.parametrize("chars", [24, 32, 64])
def test_random_runs_are_found(chars):
    rng = random.Random(chars)
    found = sum(looks_secret("".join(rng.choices(LETTERS, k=chars))) for _ in range(500))
    assert found >= 480
    assert sum(looks_secret(f"{rng.getrandbits(128):032x}") for _ in range(500)) >= 495


@pytest.mark.parametrize(
    "text",
    [
        "http://vllm-5f7d8c9b6d-x2k4j.inference.svc.cluster.local:8000/engine-a",
        "postgresql://gate@db-1.eu-central-1.rds.amazonaws.com:5432/tidegate",
        "http://ip-10-0-0-12.eu-central-1.compute.internal:8000",
        "https://app.example.com",
        "127.0.0.1:8080",
        "deadbeefdeadbeefdeadbeefdeadbeef",
        "sk-learn",
    ],
)
def test_addresses_and_words_are_not(text):
    assert not looks_secret(text)


def found(text, environ=None):
    return [problem.path for problem in literal_secrets(parse_yaml(text.encode(), "a.yaml", environ))]


def test_a_secret_is_found_wherever_it_stands():
    assert found("a: {b: [1, sk-EXAMPLEexampleEXAMPLE1234]}\n") == ["a.b[1]"]


def test_what_variables_stand_for_is_where_secrets_belong():
    assert found("a: ${K}\n", {"K": "sk-EXAMPLEexampleEXAMPLE1234"}) == []
    assert found("a: sk-EXAMPLEexampleEXAMPLE1234-${K}\n", {"K": ""}) == ["a"]


def test_revisions_and_names_may_be_random_but_not_issued_keys():
    assert found("revision: 0e9e39f249a16976918f6564b8830bc894c89659\nmodel: DeepSeekR1DistillQwen32BInstructAwq4bit\n") == []
    assert found("url: 0e9e39f249a16976918f6564b8830bc894c89659\n") == ["url"]
    assert found("name: sk-EXAMPLEexampleEXAMPLE1234\n") == ["name"]


def test_the_problem_does_not_repeat_the_secret():
    [problem] = literal_secrets(parse_yaml(b"a: sk-EXAMPLEexampleEXAMPLE1234\n", "a.yaml", None))
    assert (
        str(problem) == "a.yaml:1:1: a: holds a secret itself; keep it in a file or the environment and write {file: path} or {env: NAME}"
    )


def test_keys_that_name_secrets():
    assert names_a_secret(("pools", 0, "api_key"))
    assert names_a_secret(("secrets", "pepper", "env"))
    for key in ("model", "max_output_tokens", "first_token_cap_s", "token_gap_s"):
        assert not names_a_secret(("pools", 0, key))
