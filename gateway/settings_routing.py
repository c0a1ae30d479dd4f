"""The settings of routing that hold for all tenants: the gateway's region, and the size of the prefix index.

Policy files say how backends are chosen.
"""

from pydantic import Field

from domain.strict import Strict
from gateway.placing.ground import DEFAULT_INDEX_BLOCKS
from gateway.settings_backend import Region


class RoutingSettings(Strict):
    """Routing settings of every worker."""

    region: Region = Field(
        default="", description="Where this gateway stands, and so its callers: the `weighted` policy may prefer backends of that region."
    )
    index_blocks: int = Field(
        default=DEFAULT_INDEX_BLOCKS,
        ge=1024,
        le=100_000_000,
        description="Blocks of 64 prompt tokens whose places each worker knows, of all backends together; some 100 bytes each. Beyond "
        "them the ones unused for longest are forgotten.",
    )
