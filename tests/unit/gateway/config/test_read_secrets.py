import contextlib
import multiprocessing
import os
import sqlite3
import stat
from concurrent.futures import ProcessPoolExecutor

import pytest

from gateway.config.load import SecretReference, load_settings
from gateway.config.read_secrets import PEPPER_BYTES, read_client_secret, read_former_pepper, read_pepper, read_s3_keys
from gateway.config.secrets import MAX_SECRET_BYTES, SecretError, read_reference

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'


def settings_in(folder, more=""):
    (folder / "policies").mkdir(exist_ok=True)
    path = folder / "tidegate.yaml"
    path.write_text(POOLS + more)
    return load_settings(path, {})


def pepper_of(folder):
    return read_pepper(load_settings(folder / "tidegate.yaml", {}))


def test_a_pepper_is_made_once_for_its_owner_only(tmp_path):
    settings = settings_in(tmp_path)
    first = read_pepper(settings)
    (file,) = tmp_path.rglob("tidegate.pepper")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_pepper(settings) == first
    assert first.secret == file.read_bytes()
    assert [entry.name for entry in file.parent.iterdir() if "pepper" in entry.name] == ["tidegate.pepper"], "nothing half-made stays"


def test_processes_that_start_at_once_share_one_whole_pepper(tmp_path):
    folders = [tmp_path / str(n) for n in range(20)]
    for folder in folders:
        folder.mkdir()
        settings_in(folder)
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as processes:
        for folder in folders:
            assert len(set(processes.map(pepper_of, [folder] * 4))) == 1


def test_two_gateways_do_not_share_a_pepper(tmp_path):
    peppers = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        peppers.append(read_pepper(settings_in(folder)))
    assert peppers[0].secret != peppers[1].secret
    assert peppers[0].kid != peppers[1].kid


@pytest.mark.parametrize("content", [b"", b"abc\n"])
def test_a_damaged_pepper_is_never_replaced_in_silence(tmp_path, content):
    settings = settings_in(tmp_path)
    read_pepper(settings)
    (file,) = tmp_path.rglob("tidegate.pepper")
    file.write_bytes(content)
    with pytest.raises(SecretError, match="is damaged; restore it, or remove it and make every key again"):
        read_pepper(settings)
    assert file.read_bytes() == content


def test_a_pepper_that_cannot_be_read_says_which_file_and_what_to_do(tmp_path):
    settings = settings_in(tmp_path)
    read_pepper(settings)
    (file,) = tmp_path.rglob("tidegate.pepper")
    file.unlink()
    file.mkdir()
    with pytest.raises(SecretError, match=r"tidegate\.pepper cannot be made or read \(Is a directory\)"):
        read_pepper(settings)


def test_a_shared_database_needs_a_configured_pepper(tmp_path):
    settings = settings_in(
        tmp_path, 'stores: {sql: "postgresql://user@10.0.0.2/tidegate"}\nsecrets: {pepper: {env: TIDEGATE_TEST_PEPPER}}\n'
    )
    with pytest.raises(SecretError, match="environment variable TIDEGATE_TEST_PEPPER is empty"):
        read_pepper(settings)


def test_a_reference_is_read_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "secret").write_text("  swordfish\n")
    assert read_reference(SecretReference(file="secret"), tmp_path, {}) == "swordfish"
    assert read_reference(SecretReference(env="S"), tmp_path, {"S": " swordfish "}) == "swordfish"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"x" * (MAX_SECRET_BYTES + 1), "is too long"),
        (b"\xff\xfe swordfish", r"cannot be read \(UnicodeDecodeError\)"),
        (None, r"cannot be read \(FileNotFoundError\); create it"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named_and_never_shown(tmp_path, content, words):
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(SecretError, match=words) as caught:
        read_reference(SecretReference(file="secret"), tmp_path, {})
    assert os.fspath(tmp_path / "secret") in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_the_made_pepper_is_as_long_as_the_digest_it_keys(tmp_path):
    assert len(bytes.fromhex(read_pepper(settings_in(tmp_path)).secret.decode())) == PEPPER_BYTES


def database_with_keys(folder, *revoked_unix):
    with contextlib.closing(sqlite3.connect(folder / "tidegate.db")) as connection:
        connection.execute("CREATE TABLE api_key (id TEXT, kid TEXT, revoked_unix REAL)")
        connection.executemany("INSERT INTO api_key VALUES (?, 'k', ?)", enumerate(revoked_unix))
        connection.commit()


def test_a_pepper_that_is_missing_beside_a_database_with_keys_is_not_replaced(tmp_path):
    settings = settings_in(tmp_path, "stores: {sql: 'sqlite:///tidegate.db'}\n")
    database_with_keys(tmp_path, None, 1.0, None)
    with pytest.raises(SecretError, match=r"tidegate\.pepper is missing, and .*tidegate\.db has 2 keys .* restore .* --new-pepper"):
        read_pepper(settings)
    assert not list(tmp_path.rglob("tidegate.pepper"))
    made = read_pepper(settings, anew=True)
    assert read_pepper(settings) == made


def test_a_database_without_keys_in_use_gets_its_pepper(tmp_path):
    settings = settings_in(tmp_path, "stores: {sql: 'sqlite:///tidegate.db'}\n")
    database_with_keys(tmp_path, 1.0)
    assert read_pepper(settings)


def test_a_database_that_cannot_be_searched_for_keys_gets_no_pepper(tmp_path):
    settings = settings_in(tmp_path, "stores: {sql: 'sqlite:///tidegate.db'}\n")
    (tmp_path / "tidegate.db").write_bytes(b"no database, whatever its name says" * 100)
    with pytest.raises(SecretError, match="cannot be searched for keys"):
        read_pepper(settings)
    assert not list(tmp_path.rglob("tidegate.pepper"))


def test_the_pepper_of_before_is_named_as_it_was(tmp_path):
    (tmp_path / "old").write_text("o" * 40)
    before = settings_in(tmp_path, "secrets: {pepper: {file: old}}\n")
    now = settings_in(tmp_path, "secrets: {former_pepper: {file: old}}\n")
    assert read_former_pepper(now) == read_pepper(before)
    assert read_former_pepper(before) is None
    missing = settings_in(tmp_path, "secrets: {former_pepper: {file: none}}\n")
    with pytest.raises(SecretError, match="none cannot be read"):
        read_former_pepper(missing)


def test_s3_has_two_keys_or_the_environments_identity(tmp_path):
    (tmp_path / "access").write_text("AK\n")
    (tmp_path / "secret").write_text("SK\n")
    both = "files: {s3: {bucket: b-1, access_key: {file: access}, secret_key: {file: secret}}}\n"
    assert read_s3_keys(settings_in(tmp_path, both)) == ("AK", "SK")
    assert read_s3_keys(settings_in(tmp_path, "files: {s3: {bucket: b-1}}\n")) == ("", "")
    assert read_s3_keys(settings_in(tmp_path, "")) == ("", "")
    with pytest.raises(SecretError, match="write both, or none"):
        read_s3_keys(settings_in(tmp_path, "files: {s3: {bucket: b-1, access_key: {file: access}}}\n"))
    with pytest.raises(SecretError, match="nowhere"):
        read_s3_keys(settings_in(tmp_path, both.replace("file: secret", "file: nowhere")))


def test_the_client_secret_of_the_console_is_read_by_reference(tmp_path):
    entry = "{issuer: https://a.example, audiences: [c], tenant: {fixed: acme}, roles: {claim: [r], map: {a: owner}}}"
    console = "issuer: https://a.example, client_id: c, redirect_url: https://b.example/console/callback"
    assert read_client_secret(settings_in(tmp_path)) == ""
    assert read_client_secret(settings_in(tmp_path, f"auth: {{jwt: [{entry}], console: {{{console}}}}}\n")) == ""
    settings = settings_in(tmp_path, f"auth: {{jwt: [{entry}], console: {{{console}, client_secret: {{file: secret}}}}}}\n")
    with pytest.raises(SecretError, match="cannot be read"):
        read_client_secret(settings)
    (tmp_path / "secret").write_text("hidden\n")
    assert read_client_secret(settings) == "hidden"
