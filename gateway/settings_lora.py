"""The settings of a pool's LoRA adapters."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from backends.lora.residency import DIGEST_CHARS
from domain.strict import Strict
from tenancy.isolation import PREFIX


def _no_salt(name: str) -> str:
    if name.startswith(PREFIX):
        raise ValueError(f"begins with {PREFIX!r}, as cache salts do, which engines could mix up; give it another name")
    return name


LoraName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"), AfterValidator(_no_salt)]


class LoraSettings(Strict):
    """One adapter."""

    name: LoraName = Field(description="What policies call it; letters, digits and inner `.`, `_`, `-`.")
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description=f"SHA-256 of its files, as `tidegate lora digest FOLDER` prints it. Engines know the adapter as `name@` and the "
        f"first {DIGEST_CHARS} digits, so other content is another adapter.",
    )
    path: str = Field(min_length=1, max_length=4096, description="Where the engines find it: a path on their machines, not on this one.")
