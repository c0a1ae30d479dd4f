"""`metrics` and `console` of `tidegate.yaml`: what is counted of answers beside their numbers, and where the console reads charts from.

Size: two sections of the settings, as `gateway/config/cache.py` and others are; `settings.py` has no room for them.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from domain.strict import Strict
from gateway.config.addresses import checked_prometheus_url

PrometheusUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_prometheus_url)]


class MetricsSettings(Strict):
    """Metrics that cost something."""

    language_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the generated answers whose language is counted (`tidegate_answer_languages_total`), chosen at random and "
        "judged in a thread beside; 0.01 is enough to see a model drift. Needs the extra `guards`.",
    )


class ConsoleSettings(Strict):
    """The console's page Charts, and where forecasts read."""

    prometheus_url: PrometheusUrl | None = Field(
        default=None,
        description="Address of the Prometheus that reads this gateway's metrics, as `http://prometheus:9090`: the console's page Charts "
        "draws the dashboards' panels from it, and forecasts (`pools[].scale.predict`) read the load of past days from it. "
        "The gateway asks it only these queries. Null: neither.",
    )
    scrape_s: float = Field(
        default=15.0, ge=0.1, le=3600, description="Time between two scrapes of that Prometheus; rates are over four of them and more."
    )
