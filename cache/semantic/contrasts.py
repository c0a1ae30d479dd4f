"""English words of which one cannot stand for another: units, comparisons, opposites, places; and relations with two sides."""

from typing import Final

from cache.semantic.lexicon import word_set
from cache.semantic.words import stem


def _stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, word_set(text)))


def _forms(text: str) -> dict[str, str]:
    """`kilometre: km kilometres; …` as a table from each form to the first word of its group."""
    table: dict[str, str] = {}
    for group in text.split(";"):
        name, _, forms = group.partition(":")
        table |= dict.fromkeys([name.strip(), *forms.split()], name.strip())
    return table


UNITS: Final = _forms(
    "kilometre: km kms kilometer kilometers kilometres; metre: meter meters metres; centimetre: cm centimeter centimeters centimetres; "
    "millimetre: mm millimeter millimeters millimetres; mile: miles mi; foot: feet ft; inch: inches; yard: yards yd; "
    "kilogram: kg kgs kilo kilos kilograms; gram: grams gramme; milligram: mg milligrams; pound-weight: lb lbs; ounce: ounces oz; "
    "tonne: ton tons tonnes; litre: l liter liters litres; millilitre: ml milliliter milliliters; gallon: gallons; pint: pints; "
    "cup: cups; tablespoon: tbsp tablespoons; teaspoon: tsp teaspoons; celsius: centigrade; fahrenheit:; kelvin:; byte: bytes; "
    "kilobyte: kb kilobytes; megabyte: mb megabytes; gigabyte: gb gigabytes; terabyte: tb terabytes; bit: bits; mbps: mbit; "
    "hertz: hz; kilohertz: khz; megahertz: mhz; gigahertz: ghz; watt: watts; kilowatt: kw kilowatts; volt: volts; ampere: amp amps; "
    "calorie: calories kcal; joule: joules; degree: degrees °; acre: acres; hectare: hectares; mph:; kmh:; am:; pm:; "
    "percent: % percentage pct; permille: ‰; "
    "dollar: $ dollars usd buck bucks; euro: € euros eur; pound: £ pounds gbp sterling; yen: ¥ jpy; rupee: ₹ rupees inr; "
    "rouble: roubles ruble rubles rub; yuan: renminbi cny rmb; franc: francs chf; cent: cents; penny: pence pennies; "
    "crown: crowns sek nok dkk; zloty: pln; lira:; peso: pesos mxn; real: brl; won: krw; rand: zar; bitcoin: btc ₿; ether: eth"
)
BOUND_UNITS: Final = frozenset({"am", "foot", "rub", "l", "real", "won", "rand", "crown", "crowns", "cup", "bit", "mi", "pound-weight"})
"""Words that are a unit only beside a number."""
TIME_UNITS: Final = _forms(
    "second: seconds sec secs; minute: minutes min mins; hour: hours hr hrs hourly; day: days daily; week: weeks weekly wk wks; "
    "fortnight: fortnights fortnightly; month: months monthly mo; quarter: quarters quarterly; year: years yearly annual annually yr yrs; "
    "decade: decades; century: centuries; millisecond: ms milliseconds"
)
"""Units only beside a number, or after a word of `RATES`; adverbs such as `daily` always."""
RATES: Final = word_set("per a an each every this next last")
FREQUENCIES: Final = word_set("hourly daily weekly fortnightly monthly quarterly yearly annual annually")

_ADJECTIVES = (
    "cheap fast quick slow big large small high low old young new long short great few early late strong weak heavy light easy hard warm "
    "cold cool hot rich poor safe near thick thin tall deep wide narrow smart clever dark bright clean soft loud quiet simple close strict "
    "tough rough fresh dry wet sweet sharp happy healthy dirty busy lucky noisy pretty nice fine mild steep"
)


def _degrees() -> dict[str, str]:
    table = {
        "more": "more",
        "less": "less",
        "fewer": "less",
        "most": "most",
        "least": "least",
        "better": "better",
        "worse": "worse",
        "best": "best",
        "worst": "worst",
        "further": "farther",
        "farther": "farther",
        "before": "before",
        "after": "after",
        "prior": "before",
        "until": "until",
        "till": "until",
        "since": "since",
        "than": "than",
        "maximum": "max",
        "minimum": "min",
        "max": "max",
        "min": "min",
        "highest": "max",
        "lowest": "min",
        "above": "above",
        "below": "below",
        "exceed": "above",
        "earlier": "earlier",
        "later": "later",
        "bigger": "large+",
        "larger": "large+",
        "biggest": "large++",
        "largest": "large++",
        "faster": "fast+",
        "quicker": "fast+",
        "fastest": "fast++",
        "quickest": "fast++",
    }
    for adjective in _ADJECTIVES.split():
        bare = adjective[:-1] if adjective[-1] in "ey" else adjective
        doubled = adjective + adjective[-1]
        for root in (adjective, bare + ("i" if adjective.endswith("y") else ""), doubled):
            for ending, mark in (("er", "+"), ("est", "++")):
                table.setdefault(root + ending, adjective + mark)
    for other in ("cheaper", "fewest"):
        table.setdefault(other, other)
    return table


DEGREES: Final = _degrees()
"""Comparatives, superlatives, and words of order, to a common form. `best` is an everyday word, so `FILLERS_OF_DEGREE` leaves it out."""
FILLERS_OF_DEGREE: Final = frozenset({"best", "than"})

_OPPOSITES = (
    "open close/shut; enable disable; buy/purchase sell; increase/raise decrease/reduce/lower; lock unlock; send receive; add "
    "remove/delete/subtract; import export; upload download; start/begin stop/end/finish; accept/approve "
    "reject/decline/deny/refuse; allow forbid/block/prevent/ban; encrypt decrypt; encode decode; compress decompress; push "
    "pull; push pop; read write; borrow lend; deposit/pay-in withdraw; credit debit; lose find; win lose; arrive depart/leave; "
    "arrival departure; enter exit; join leave; activate deactivate/cancel; create delete/destroy/remove; install "
    "uninstall/remove; connect disconnect; subscribe unsubscribe/cancel; attach detach; mount unmount; save/spend spend/save; "
    "gain lose; pass fail; succeed fail; success failure; show hide; expand collapse; include exclude; include omit; hire "
    "fire; insert remove/delete; merge split; multiply divide; plus minus; positive negative; true false; good bad; good/right "
    "wrong; correct incorrect; left right; north south; east west; top bottom; up down; front back; inside outside; internal "
    "external; input output; incoming outgoing; inbound outbound; advantage disadvantage; benefit drawback; pro con; cause "
    "effect; cause prevent; teacher student; employer employee; landlord tenant; buyer seller; lender borrower; male female; "
    "man woman; boy girl; husband wife; father mother; dad mum/mom; son daughter; brother sister; mother daughter; father son; "
    "parent child; uncle aunt; public private; legal illegal; free paid; login logout; signin signout; checkin checkout; cheap "
    "expensive; safe dangerous/unsafe; healthy unhealthy; hot cold; warm cold/cool; high low; large/big small/little; long "
    "short; old new/young; early late; fast/quick slow; easy hard/difficult; strong weak; rich poor; heavy light; full empty; "
    "alive dead; wet dry; clean dirty; hard soft; dark bright/light; thick thin; wide narrow; deep shallow; first last; "
    "maximum minimum; ascending descending; horizontal vertical; physical virtual/digital; online offline; local "
    "remote/global; manual automatic; permanent temporary; single multiple; married single/divorced; present absent; past "
    "future; frozen/freeze unfreeze/thaw; block unblock; renew cancel/expire; extend shorten; gross net; asset liability; "
    "profit loss; income expense; supply demand; sunrise sunset; client server; sender recipient/receiver; acid base; war "
    "peace; love hate; remember forget; agree disagree; appear disappear; known unknown; domestic international/foreign; visa "
    "mastercard; cat dog; tea coffee; breakfast lunch; lunch dinner; breakfast dinner"
)


def _opposed() -> dict[str, frozenset[str]]:
    table: dict[str, set[str]] = {}
    for group in _OPPOSITES.replace("/ ", "/").split(";"):
        one, other = ({stem(word) for word in side.split("/")} for side in group.split())
        for word in one:
            table.setdefault(word, set()).update(other - {word})
        for word in other:
            table.setdefault(word, set()).update(one - {word})
    return {word: frozenset(others) for word, others in table.items()}


OPPOSITES: Final = _opposed()
"""By stem: the stems that say the opposite, or that name the other of two."""
OPPOSING_PREFIXES: Final = ("un", "in", "im", "ir", "il", "dis", "non", "mis", "de")
"""A word and the same word behind one of these are opposites (`install`, `uninstall`)."""

PARTICLE_VERBS: Final = _stems("turn switch log sign check opt plug zoom scroll clock roll cash power hop get move phase step go come")
PARTICLES: Final = {"on": "off", "off": "on", "in": "out", "out": "in", "up": "down", "down": "up"}

SYMMETRIC: Final = _stems(
    "married marry similar same alike related relative connected linked close dating date friend acquaintance different "
    "difference differ between compare comparison versus vs equal equivalent sibling brother sister cousin neighbour neighbor "
    "colleague partner meet twin engaged compatible distance far together both match mix combine apart separate talk fight "
    "bound"
)
"""Stems of relations whose two sides can be exchanged."""
DIRECTIONS: Final = word_set("to into from of for over under via against instead")
"""Words that have one thing before them and another after; exchanged, they say something else."""

_NATIONS = (
    "afghanistan albania algeria angola argentina armenia australia austria azerbaijan bahrain bangladesh belarus belgium "
    "benin bolivia bosnia botswana brazil britain bulgaria cambodia cameroon canada chad chile china colombia congo croatia "
    "cuba cyprus czechia denmark ecuador egypt england estonia eswatini ethiopia europe finland france gabon germany ghana "
    "greece guatemala haiti honduras hungary iceland india indonesia iran iraq ireland israel italy jamaica japan jordan "
    "kazakhstan kenya korea kosovo kuwait laos latvia lebanon liberia libya liechtenstein lithuania luxembourg madagascar "
    "malaysia mali malta mauritius mexico moldova monaco mongolia montenegro morocco mozambique myanmar namibia nepal "
    "netherlands nicaragua niger nigeria norway oman pakistan palestine panama paraguay peru philippines poland portugal qatar "
    "romania russia rwanda scotland senegal serbia singapore slovakia slovenia somalia spain sudan sweden switzerland syria "
    "taiwan tanzania thailand togo tunisia turkey uganda ukraine uruguay usa uk eu uzbekistan venezuela vietnam wales yemen "
    "zambia zimbabwe africa asia america antarctica"
)
_PEOPLES = (
    "american arab arabic argentinian australian austrian belgian brazilian british bulgarian canadian chinese colombian "
    "croatian cuban czech danish dutch egyptian english european finnish french german greek hebrew hindi hungarian icelandic "
    "indian indonesian iranian iraqi irish israeli italian japanese kenyan korean latin malay mexican moroccan nigerian "
    "norwegian pakistani persian peruvian portuguese romanian russian scottish serbian spanish swedish swiss syrian thai "
    "turkish ukrainian vietnamese welsh"
)
_CITIES = (
    "amsterdam athens atlanta bangkok barcelona beijing berlin bogota boston brussels budapest cairo chicago copenhagen dallas "
    "delhi denver detroit dubai dublin edinburgh frankfurt geneva glasgow hamburg helsinki houston istanbul jakarta jerusalem "
    "karachi kyiv lagos lima lisbon london madrid manchester manila melbourne miami milan montreal moscow mumbai munich "
    "nairobi naples oslo paris philadelphia phoenix prague rome seattle seoul shanghai stockholm sydney tokyo toronto "
    "vancouver venice vienna warsaw washington zurich hawaii california texas florida alaska nevada arizona ohio oregon utah"
)
_MAKERS = (
    "android iphone ipad ios windows linux macos ubuntu chrome firefox safari google apple microsoft amazon facebook instagram "
    "whatsapp twitter youtube netflix spotify paypal visa mastercard python java javascript typescript rust golang ruby php "
    "swift kotlin mysql postgres postgresql mongodb redis docker kubernetes azure aws gcp"
)
PROPER: Final = word_set(f"{_NATIONS} {_PEOPLES} {_CITIES} {_MAKERS}")
"""Names that are often written without a capital letter. The list is short; a name that it lacks is seen only by its capital."""
