"""What a batch may ask for."""

import pytest

from domain.ask import Endpoint
from domain.faults import Fault
from gateway.http.openai.batches import WINDOW, BatchRequest, check_request


@pytest.mark.parametrize("endpoint", Endpoint)
def test_a_batch_asks_for_any_endpoint_whose_requests_and_answers_are_json(endpoint: Endpoint) -> None:
    asked = BatchRequest("file-1", endpoint.path, WINDOW)
    if not (endpoint.sound or endpoint.duplex):
        check_request(asked)
        return
    with pytest.raises(Fault) as caught:
        check_request(asked)
    assert caught.value.param == "endpoint"
