"""A command about a resource that is not there says which one is missing, a name that is near, and where to look."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import app
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands

LISTED = "`tidegate {} list` shows those there are."
TENANTS = LISTED.format("tenant")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path_factory.mktemp("missing")) as port:
        port.run("tenant", "create", "search")
        port.run("limit", "set", "tenant:search:requests:day", "10")
        yield port


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("tenant show nosuch", f"There is no tenant 'nosuch' (or this token may not see it); {TENANTS}"),
        ("tenant show serch", f"There is no tenant 'serch' (or this token may not see it); did you mean 'search'? {TENANTS}"),
        ("tenant set nosuch --models chat", "There is no tenant 'nosuch'"),
        ("org show nosuch", f"There is no organisation 'nosuch' (or this token may not see it); {LISTED.format('org')}"),
        ("project show lab --tenant nosuch", "There is no tenant 'nosuch'"),
        ("project show lab --tenant search", "There is no project in tenant 'search' named 'lab'"),
        ("key list --tenant nosuch", "There is no tenant 'nosuch'"),
        ("limit state serch", "There is no tenant 'serch' (or this token may not see it); did you mean 'search'?"),
        ("limit state nosuch --level organisation", "There is no organisation 'nosuch'"),
        ("limit set tenant:serch:requests:day 5", "There is no tenant 'serch' (or this token may not see it); did you mean 'search'?"),
        ("limit set project:search/lab:requests:day 5", "There is no project in tenant 'search' named 'lab'"),
        ("limit set key:nosuch:requests:day 5", f"There is no key 'nosuch' (or this token may not see it); {LISTED.format('key')}"),
        ("limit raise tenant:search:tokens:day 5", "There is no limit 'tenant:search:tokens:day'"),
        ("limit delete tenant:search:requests:minute --yes", "did you mean 'tenant:search:requests:day'?"),
        ("limit delete tenant:nosuch:requests:day --yes", "There is no tenant 'nosuch'"),
        ("rollout show nosuch", f"There is no rollout 'nosuch' (or this token may not see it); {LISTED.format('rollout')}"),
        ("rollout promote nosuch", "There is no rollout 'nosuch'"),
        ("cache purge --tenant serch --yes", "There is no tenant 'serch' (or this token may not see it); did you mean 'search'?"),
        ("cache list --tenant serch", "There is no tenant 'serch' (or this token may not see it); did you mean 'search'?"),
        ("usage show --tenant serch", "There is no tenant 'serch' (or this token may not see it); did you mean 'search'?"),
        ("usage show --tenant search --project lab", "There is no project in tenant 'search' named 'lab'"),
        ("usage export --tenant nosuch", "There is no tenant 'nosuch'"),
    ],
)
def test_the_missing_resource_is_named_with_one_that_is_near(port: AdminSocket, words: str, says: str) -> None:
    done = port.run(*words.split())
    assert done.exit_code == 1
    assert says in " ".join(done.stderr.split())
    assert (done.stdout, "There is no such thing" in done.stderr) == ("", False)


def test_a_request_of_an_unknown_tenant_is_not_placed(port: AdminSocket, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"model": "sim", "messages": []}')
    done = port.run("explain", "--file", file, "--tenant", "serch")
    assert (done.exit_code, "There is no tenant 'serch'" in done.stderr, "'search'?" in done.stderr) == (1, True, True)
    lab = port.run("explain", "--file", file, "--tenant", "search", "--project", "lab")
    assert (lab.exit_code, "There is no project in tenant 'search' named 'lab'" in lab.stderr) == (1, True)


def test_names_are_guessed_only_from_lists_that_the_caller_may_read(port: AdminSocket) -> None:
    port.run("tenant", "create", "secret")
    own = port.run("limit", "state", "serch", token="tenant-admin@search")
    assert "did you mean 'search'?" in own.stderr
    other = port.run("limit", "state", "secret", token="tenant-admin@search")
    none = port.run("limit", "state", "sekret", token="tenant-admin@search")
    assert (other.exit_code, "There is no tenant 'secret' (or this token may not see it)" in other.stderr) == (1, True)
    assert none.stderr == other.stderr.replace("'secret'", "'sekret'"), "the sentence does not tell that the first one exists"
    hidden = port.run("limit", "state", "defalt", "--level", "organisation", token="tenant-admin@search")
    assert (hidden.exit_code, "did you mean" in hidden.stderr) == (1, False)


def test_usage_of_a_tenant_that_used_nothing_is_an_empty_table(port: AdminSocket) -> None:
    assert port.run("usage", "show", "--tenant", "search", "--json").stdout.strip() == "[]"


def test_the_owner_of_the_database_sees_everything(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(
        'stores: {sql: "sqlite:///admin.db"}\npools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'
    )
    done = Commands().invoke(app, ["tenant", "show", "nosuch", "--offline", "-c", str(tmp_path / "tidegate.yaml")], env={"COLUMNS": "200"})
    assert (done.exit_code, f"There is no tenant 'nosuch'; {TENANTS}" in done.stderr) == (1, True), done.stderr
