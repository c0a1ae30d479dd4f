"""`metrics` of `tidegate.yaml`: what is counted of answers beside their numbers.

Size: a section of the settings, as `gateway/config/cache.py` and others are; `settings.py` has no room for it.
"""

from pydantic import Field

from domain.strict import Strict


class MetricsSettings(Strict):
    """Metrics that cost something."""

    language_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the generated answers whose language is counted (`tidegate_answer_languages_total`), chosen at random and "
        "judged in a thread beside; 0.01 is enough to see a model drift. Needs the extra `guards`.",
    )
