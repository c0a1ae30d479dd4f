"""Settings of files, uploads and batches (docs/reference/batches.md)."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from domain.strict import Strict
from gateway.config.addresses import checked_store_url
from gateway.config.secrets import SecretReference

Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
ServerUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_store_url)]


class S3Settings(Strict):
    """A bucket of S3, or of a server that speaks its protocol; it has to be there already."""

    bucket: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(description="Name of the bucket.")
    prefix: Annotated[str, StringConstraints(max_length=512)] = Field(default="", description="Beginning of every key in the bucket.")
    endpoint: ServerUrl | None = Field(default=None, description="URL of the server; null for Amazon's.")
    region: Text = Field(default="us-east-1", description="Region of the bucket.")
    access_key: SecretReference | None = Field(
        default=None, description="Access key; null where the gateway's environment has its own identity (instance role, web identity)."
    )
    secret_key: SecretReference | None = Field(default=None, description="Secret key; needed together with `access_key`.")


class FileSettings(Strict):
    """`/v1/files` and `/v1/uploads`. The bytes of files are in a folder or in S3, the rest of them in SQL."""

    enabled: bool = Field(default=True, description="Whether callers can store files, and with them run batches.")
    folder: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        default="tidegate-files",
        description="Folder of the files' bytes, relative to the settings file, where `s3` is null. Gateways on several hosts need a "
        "folder that all of them see, or S3.",
    )
    s3: S3Settings | None = Field(default=None, description="Bucket of the files' bytes; null to keep them in `folder`.")
    max_bytes_per_tenant: int = Field(
        default=10 * 1024**3, ge=0, le=2**50, description="Bytes that one tenant may store; unfinished uploads count with their whole size."
    )
    max_files_per_tenant: int = Field(default=10_000, ge=0, le=10_000_000, description="Files that one tenant may store.")
    max_file_bytes: int = Field(default=512 * 1024**2, ge=1024, le=2**43, description="Largest file that comes in one request.")
    max_part_bytes: int = Field(
        default=64 * 1024**2, ge=1024, le=5 * 1024**3, description="Largest part of an upload; OpenAI's clients send parts of 64 MiB."
    )
    max_upload_bytes: int = Field(default=8 * 1024**3, ge=1024, le=2**43, description="Largest file that comes as an upload in parts.")


class BatchSettings(Strict):
    """`/v1/batches`: each worker looks for batches, and runs their requests in the class `batch` while others leave room."""

    enabled: bool = Field(default=True, description="Whether this gateway accepts batches and runs them.")
    max_open_per_tenant: int = Field(
        default=20, ge=1, le=100, description="Batches of one tenant that are not over; a further one is refused."
    )
    max_lines: int = Field(default=50_000, ge=1, le=50_000, description="Requests of one batch.")
    price_percent: int = Field(
        default=50,
        ge=0,
        le=1000,
        description="What a request of a batch costs, in percent of its model's price. Tokens and units count in full.",
    )
    max_in_flight: int = Field(default=16, ge=1, le=4096, description="Requests of batches that one worker has in flight, at most.")
    max_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Part of each pool's room, as far as it is known, up to which batches fill it: above it, requests of callers alone.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="Seconds after which another worker takes over a batch whose worker has died.",
    )
    look_every_s: float = Field(default=2.0, ge=0.05, le=600, description="Seconds between two looks for new batches.")
