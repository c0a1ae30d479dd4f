"""The settings of secrets: references to their files or environment variables, never the secrets; and how one is followed.

A client of a running gateway reads its token by this module, without any other settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, field_validator, model_validator

from domain.strict import Strict

MAX_SECRET_BYTES: Final = 4096

File = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class SecretReference(Strict):
    """A reference to a secret: exactly one of the two."""

    file: File | None = Field(default=None, description="File that holds the secret, relative to the settings file.")
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Environment variable that holds the secret.")

    @model_validator(mode="before")
    @classmethod
    def _no_literal(cls, value: Any) -> Any:
        if isinstance(value, str | int | float):
            raise ValueError("holds a secret itself; write {file: path} or {env: NAME}")
        return value

    @model_validator(mode="after")
    def _one(self) -> "SecretReference":
        if (self.file is None) == (self.env is None):
            raise ValueError("names no place, or two; write either {file: path} or {env: NAME}")
        return self


class SecretSettings(Strict):
    """Secrets, by reference."""

    pepper: SecretReference | None = Field(
        default=None,
        description="Key of the HMAC that digests API keys. Required with Postgres; with SQLite the default is the file "
        "`tidegate.pepper` beside the database, created on first use.",
    )

    former_pepper: SecretReference | None = Field(
        default=None,
        description="The pepper of before: what it encrypted stays readable. No key that was made with it works.",
    )

    admin_token: SecretReference | None = Field(
        default=None,
        description="The token that authorises changes of the fleet over the admin port, at least 24 characters; without it, the "
        "admin port is read-only.",
    )

    @field_validator("pepper", "former_pepper", "admin_token", mode="before")
    @classmethod
    def _unset(cls, value: Any) -> Any:
        """None for `{file: null, env: null}`, which a template holds before it is filled in."""
        return None if isinstance(value, dict) and value and all(part is None for part in value.values()) else value


class SecretError(Exception):
    """A secret cannot be read; the message names it and the remedy, and never contains it."""


class WeakSecret(SecretError):
    """The secret exists and is too weak."""


def read_reference(reference: SecretReference, base_dir: Path, environ: Mapping[str, str]) -> str:
    """The secret behind `{file: …}` or `{env: …}`, stripped of surrounding white space.

    Raises:
        SecretError: the secret is missing, empty or too long.
    """
    if reference.env is not None:
        value = environ.get(reference.env, "").strip()
        source = f"environment variable {reference.env}"
    else:
        path = base_dir / str(reference.file)
        source = f"file {path}"
        try:
            value = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SecretError(f"{source} cannot be read ({type(error).__name__}); create it, readable by this user only") from None
    if not value or len(value) > MAX_SECRET_BYTES:
        raise SecretError(f"{source} is {'empty' if not value else 'too long'}; it should hold one secret")
    return value
