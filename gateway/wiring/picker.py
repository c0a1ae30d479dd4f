"""Starts the endpoint picker (`gateway/picker/`) where the settings have one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.config.load import Settings
from gateway.deps import Deps

if TYPE_CHECKING:
    from gateway.picker.server import PickerServer


async def picker_for(settings: Settings, deps: Deps, count: Callable[[str], None]) -> "PickerServer | None":
    """A worker's endpoint picker, listening; None where the settings have none.

    Args:
        count: called with the outcome of each pick.

    Raises:
        CertificateError: a file of TLS cannot be used.
        OSError: the address is taken.
    """
    wanted = settings.picker
    if wanted is None:
        return None
    # imported only here: gRPC is an extra, and costs a worker 150 ms and a thread
    from gateway.picker.pick import EndpointPicker
    from gateway.picker.server import PickerServer

    picks = EndpointPicker(deps, wanted.tenant, wanted.fallbacks, count)
    server = PickerServer(wanted, picks, deps.log_defect, deps.new_id, settings.base_dir)
    await server.start()
    return server
