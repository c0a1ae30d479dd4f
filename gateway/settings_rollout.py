"""The settings of rollouts: the webhook that hears of changes."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from domain.strict import Strict
from gateway.addresses import checked_hook_url
from gateway.settings_secret import SecretReference

HookUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_hook_url)]


class WebhookSettings(Strict):
    """The receiver of messages about changes, and the secret that signs them."""

    url: HookUrl = Field(description="Where a JSON object is posted to: http(s)://host[:port]/path.")
    secret: SecretReference = Field(description="What every message is signed with (HMAC-SHA256); at least 24 characters.")


class RolloutSettings(Strict):
    """Rollouts themselves are started over the admin API (docs/rollouts.md)."""

    webhook: WebhookSettings | None = Field(default=None, description="Who is told of every change of a rollout; null for nobody.")
