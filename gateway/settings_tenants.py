"""The `tenants` section of `tidegate.yaml`: how much of the directory one tenant may fill."""

from pydantic import Field

from domain.strict import Strict
from tenancy.accounts import DirectoryBounds


class TenantSettings(Strict):
    """Bounds of every tenant. Existing keys and projects stay when a bound is lowered."""

    max_keys: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Keys of one tenant that are not revoked; beyond it no key is made (409). As many revoked ones are remembered.",
    )
    max_projects: int = Field(default=1_000, ge=1, le=100_000, description="Projects of one tenant; beyond it none is made (409).")

    def bounds(self) -> DirectoryBounds:
        """The bounds as the directory takes them."""
        return DirectoryBounds(self.max_keys, self.max_projects)
