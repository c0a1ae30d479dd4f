"""Every routing policy by the name used in policy files. A new one is a file in `policies/` and a line here."""

from collections.abc import Mapping
from typing import Final

from routing.policies import least_load
from routing.ports import Rank

POLICIES: Final[Mapping[str, Rank]] = {"least_load": least_load.rank}

TERMS: Final[Mapping[str, tuple[str, ...]]] = {"least_load": least_load.TERMS}
"""Names of each policy's cost terms, in the order its `rank` returns them."""
