"""Schemathesis against the admin port over a socket: whatever its OpenAPI document allows, and what it does not, is answered as it
says. Answers of 5xx are failures of ours, but for 503 where the document announces it and something really is away."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.admin.access import ROLE_TABLE
from tests.admin_harness import API, OWNER
from tests.admin_socket import AdminSocket, admin_socket
from tests.scale import scaled
from tests.timing import hang_s

EXAMPLES = scaled(6, 100)
RUNS = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path_factory.mktemp("admin")) as made:
        for path, value in (("/tenants", {"name": "acme"}), ("/tenants/acme/projects", {"name": "web"})):
            assert httpx.post(made.url + API + path, json=value, headers=OWNER, trust_env=False, timeout=hang_s()).status_code == 201
        yield made


@pytest.fixture(scope="module")
def document(port: AdminSocket) -> Any:
    refusals = ["400", "401", "403", "404", "409", "413", "415", "422", "428"]
    config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": refusals}}})
    return schemathesis.openapi.from_url(f"{port.url}{API}/openapi.json", config=config, headers=OWNER, timeout=hang_s())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        # every fifth in `make test`, the others in `make test-slow`: an operation takes up to a second
        pytest.param(method, path.replace(":path}", "}"), marks=pytest.mark.slow if number % 5 else ())
        for number, (method, path) in enumerate(ROLE_TABLE)
        if path not in ("/live", "/requests/live")  # streams do not end; test_live.py and test_requests.py of the routes have them
    ],
)
def test_the_port_does_what_its_document_says(document: Any, method: str, path: str) -> None:
    operation = document[path][method]

    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @RUNS
    def positive(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=OWNER, checks=CHECKS, timeout=hang_s())

    @given(case=operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    @RUNS
    def negative(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=OWNER, checks=CHECKS, timeout=hang_s())

    positive()
    if not operation.body and not list(operation.iter_parameters()):
        return  # there is nothing to be wrong in
    negative()
