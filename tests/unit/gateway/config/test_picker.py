"""Laws of the section `picker`: no port 0, and no listener that other hosts reach without TLS unless it is said."""

import pytest
from pydantic import ValidationError

from gateway.config.picker import PickerSettings

TLS = {"certificate": "a.crt", "private_key": "a.key"}


@pytest.mark.parametrize("bind", ["127.0.0.1:9002", "[::1]:9002", "localhost:9002"])
def test_loopback_needs_no_tls(bind: str) -> None:
    assert PickerSettings(bind=bind, tenant="acme").tls is None


@pytest.mark.parametrize("bind", ["0.0.0.0:9002", "[::]:9002", "10.0.0.1:9002", "picker.internal:9002"])
def test_other_addresses_need_tls_or_a_word(bind: str) -> None:
    with pytest.raises(ValidationError, match="without TLS; set tls, or plain_text: true"):
        PickerSettings(bind=bind, tenant="acme")
    assert PickerSettings(bind=bind, tenant="acme", plain_text=True).bind == bind
    assert PickerSettings(bind=bind, tenant="acme", tls=TLS).tls_files == TLS


def test_the_port_is_named_and_the_tenant_too() -> None:
    with pytest.raises(ValidationError, match="has port 0; name the port"):
        PickerSettings(bind="127.0.0.1:0", tenant="acme")
    with pytest.raises(ValidationError, match="tenant"):
        PickerSettings()
