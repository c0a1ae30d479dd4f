"""Prices of tokens, each from a moment on. A stored price is never changed; a newer one replaces it."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, Moment, PageQuery, Posting, Text, decode_cursor, page_of
from gateway.admin.guard import GuardedRoute
from tenancy.prices import ANY_REVISION, Price, TokenRates

router = APIRouter(route_class=GuardedRoute, tags=["Prices"])

MAX_RATE = 10**12
"""A thousand dollars per million tokens, in nano-dollars."""
ID_BYTES = 8

Rate = Annotated[int, Field(ge=0, le=MAX_RATE)]


class RatesBody(Strict):
    """One number per kind of token."""

    uncached_input: Rate = Field(default=0, description="Prompt tokens that were not in the engine's prefix cache.")
    cached_input: Rate = Field(default=0, description="Prompt tokens that were in the engine's prefix cache.")
    output: Rate = Field(default=0, description="Generated tokens.")
    reasoning: Rate = Field(default=0, description="Generated tokens of hidden reasoning.")


class UnitsBody(RatesBody):
    """Weights: thousandths of a unit per token."""

    uncached_input: Rate = 1000
    cached_input: Rate = 1000
    output: Rate = 1000
    reasoning: Rate = 1000


class NewPrice(Strict):
    """A price to set."""

    model: Text = Field(description="The public model name.")
    revision: Text = Field(default=ANY_REVISION, description="One revision of the model's pool, or `*`.")
    effective_unix: Moment | None = Field(default=None, description="When the price takes effect, in seconds since 1970; default: now.")
    nanousd_per_mtok: RatesBody = Field(default=RatesBody(), description="Nano-dollars per million tokens.")
    units: UnitsBody = Field(default=UnitsBody(), description="Thousandths of a unit per token.")


class PriceShown(BaseModel):
    """A price."""

    id: str
    model: str
    revision: str
    effective_unix: float
    nanousd_per_mtok: RatesBody
    units: RatesBody


class PricePage(BaseModel):
    """Prices by id."""

    items: list[PriceShown]
    next_cursor: str | None


class PriceQuery(PageQuery):
    """The prices to show."""

    model: str = Field(default="", max_length=256, description="Only prices of this model.")


@router.get("/prices", response_model=PricePage, responses=READ_ERRORS, summary="List prices")
async def list_all(call: Asking, query: Annotated[PriceQuery, Query()]) -> Response:
    """Show prices: past, in force and to come."""
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await directory.prices.page(query.model, after, query.limit + 1)
    return answer(200, page_of(records, query.limit, _shown, lambda record: record.id))


@router.post("/prices", status_code=201, response_model=PriceShown, responses=POST_ERRORS, summary="Set a price")
async def create(call: Posting, body: NewPrice) -> Response:
    """Set a price from a moment on; requests keep the one they were admitted at."""

    async def work(books: Transactions, entropy: Entropy) -> Done:
        price = Price(
            id=f"price-{entropy[:ID_BYTES].hex()}",
            model=body.model,
            revision=body.revision,
            effective_unix=call.parts.wall() if body.effective_unix is None else body.effective_unix,
            nanousd_per_mtok=TokenRates(**body.nanousd_per_mtok.model_dump()),
            units=TokenRates(**body.units.model_dump()),
        )
        await books.directory.prices.add(price)
        shown = _shown(price)
        return Done(201, "price.set", f"price/{price.id}", shown, after=shown)

    return await call.change(work)


@router.get("/prices/{price_id}", response_model=PriceShown, responses=READ_ERRORS, summary="Show a price")
async def get(call: Asking, price_id: Annotated[str, Path(max_length=64)]) -> Response:
    """Show one price."""
    async with call.parts.reading() as directory:
        return answer(200, _shown(await directory.prices.get(price_id)))


def _shown(price: Price) -> dict[str, Any]:
    shown: dict[str, Any] = {name: getattr(price, name) for name in ("id", "model", "revision", "effective_unix")}
    for name in ("nanousd_per_mtok", "units"):
        shown[name] = {kind: getattr(getattr(price, name), kind) for kind in TokenRates.__struct_fields__}
    return shown
