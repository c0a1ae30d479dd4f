"""Commands that work straight on the database of a settings file: their options, and the connection."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from gateway.config.load import Settings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

Config = Annotated[Path, typer.Option("--config", "-c", help="The settings file.")]
DEFAULT_CONFIG: Final = Path("tidegate.yaml")


async def with_database(settings: Settings, work: "Callable[[AsyncEngine], Awaitable[T]]") -> T:
    """Migrate the schema to this version and run `work`. Raises StoreError, and whatever `work` raises."""
    # imported only here: the import takes 0.4 s, which `--help` should not cost
    from tenancy.stores.sql import migrate, open_engine

    engine = open_engine(settings.sql_url)
    try:
        await migrate(engine)
        return await work(engine)
    finally:
        await engine.dispose()
