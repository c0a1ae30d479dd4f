"""Prices of tokens, each from a moment on. A stored price is never changed; a newer one replaces it."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, Moment, PageQuery, Posting, Text, decode_cursor, page_of
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem
from tenancy.money import DOLLARS, MAX_RATE, dollars_of, nanousd_of
from tenancy.prices import ANY_REVISION, Price, TokenRates, rates_of

router = APIRouter(route_class=GuardedRoute, tags=["Prices"])

ID_BYTES = 8

Rate = Annotated[int, Field(ge=0, le=MAX_RATE)]


def _in_dollars(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError('write dollars as text, a plain decimal as "0.20"; a JSON number may be rounded')
    nanousd_of(value, MAX_RATE)
    return value


Dollars = Annotated[str, BeforeValidator(_in_dollars), WithJsonSchema({"type": "string", "pattern": f"^{DOLLARS.pattern}$"})]
UNCACHED: Final = "Prompt tokens that were not in the engine's prefix cache; left out: 0, free."
CACHED: Final = "Prompt tokens that were in the engine's prefix cache; left out or null: as `uncached_input`; 0: free."
OUTPUT: Final = "Generated tokens; left out: 0, free."
REASONING: Final = "Generated tokens of hidden reasoning; left out or null: as `output`; 0: free."


class NanoRatesBody(Strict):
    """Whole nano-dollars per million tokens, by kind of token."""

    uncached_input: Rate = Field(default=0, description=UNCACHED)
    cached_input: Rate | None = Field(default=None, description=CACHED)
    output: Rate = Field(default=0, description=OUTPUT)
    reasoning: Rate | None = Field(default=None, description=REASONING)


class DollarRatesBody(Strict):
    """Dollars per million tokens as decimal text, by kind of token."""

    uncached_input: Dollars = Field(default="0", description=UNCACHED)
    cached_input: Dollars | None = Field(default=None, description=CACHED)
    output: Dollars = Field(default="0", description=OUTPUT)
    reasoning: Dollars | None = Field(default=None, description=REASONING)


class RatesShown(BaseModel):
    """One number per kind of token."""

    uncached_input: int
    cached_input: int
    output: int
    reasoning: int


class DollarRatesShown(BaseModel):
    """Dollars per kind of token, as decimal text."""

    uncached_input: str
    cached_input: str
    output: str
    reasoning: str


class UnitsBody(Strict):
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
    usd_per_mtok: DollarRatesBody | None = Field(default=None, description='Dollars per million tokens, as text: `"0.20"`.')
    nanousd_per_mtok: NanoRatesBody | None = Field(
        default=None, description="The same in whole nano-dollars; one of both, and neither for a model that costs nothing."
    )
    units: UnitsBody = Field(default=UnitsBody(), description="Thousandths of a unit per token.")


class PriceShown(BaseModel):
    """A price."""

    id: str
    model: str
    revision: str
    effective_unix: float
    nanousd_per_mtok: RatesShown
    usd_per_mtok: DollarRatesShown = Field(description="The same as `nanousd_per_mtok`, in dollars.")
    units: RatesShown
    doubtful: list[Literal["cached_input", "reasoning"]] = Field(
        description="Kinds that are free in a price of an older version, "
        "perhaps only because they were left out. Set the price anew to say what is meant."
    )


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
    rates = _rates(body)

    async def work(books: Transactions, entropy: Entropy) -> Done:
        price = Price(
            id=f"price-{entropy[:ID_BYTES].hex()}",
            model=body.model,
            revision=body.revision,
            effective_unix=call.parts.wall() if body.effective_unix is None else body.effective_unix,
            nanousd_per_mtok=rates,
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


def _rates(body: NewPrice) -> TokenRates:
    if body.usd_per_mtok is None:
        return rates_of({} if body.nanousd_per_mtok is None else body.nanousd_per_mtok.model_dump())
    if body.nanousd_per_mtok is not None:
        raise AdminProblem(400, "invalid_value", "usd_per_mtok: stands beside nanousd_per_mtok; send one of both.", "usd_per_mtok")
    return rates_of({kind: None if rate is None else nanousd_of(rate, MAX_RATE) for kind, rate in body.usd_per_mtok.model_dump().items()})


def _shown(price: Price) -> dict[str, Any]:
    shown: dict[str, Any] = {name: getattr(price, name) for name in ("id", "model", "revision", "effective_unix")}
    for name in ("nanousd_per_mtok", "units"):
        shown[name] = {kind: getattr(getattr(price, name), kind) for kind in TokenRates.__struct_fields__}
    shown["usd_per_mtok"] = {kind: dollars_of(rate) for kind, rate in shown["nanousd_per_mtok"].items()}
    shown["doubtful"] = list(price.doubtful)
    return shown
