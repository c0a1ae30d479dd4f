"""Reads usage over the admin API, page by page, so that neither side holds a whole export in memory."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from gateway.cli.admin_client import API, PAGE, AdminClient
from tenancy.usage import PAGE_ROWS, SUMS, By, Filter, Page, UsageAnswerRow, UsageSums, columns

MOST: Final = PAGE
"""Most rows of one page over the API."""


class ApiUsage:
    """`tenancy.usage.UsageTotals` over a running gateway. A failure ends the command with a sentence."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def totals(self, by: Sequence[By], where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> Page:
        """Sums per combination of labels, sorted by labels; at most `limit` rows after the cursor `after`."""
        filters: dict[str, Any] = {name: str(value) for name in Filter.__struct_fields__ if (value := getattr(where, name)) is not None}
        rows: list[UsageAnswerRow] = []
        while True:
            page = self._page({"by": list(by), "limit": min(MOST, limit - len(rows)), **filters, **({"cursor": after} if after else {})})
            rows += (_row(item, by) for item in page["items"])
            after = page["next_cursor"]
            if after is None or len(rows) >= limit:
                return Page(tuple(rows), after)

    def _page(self, query: dict[str, Any]) -> Any:
        return self._client.read(f"{API}/usage?{urlencode(query, doseq=True)}")


def _row(item: dict[str, Any], by: Sequence[By]) -> UsageAnswerRow:
    return UsageAnswerRow(
        tuple(item["labels"][name] for name in columns(by)), msgspec.convert({name: item[name] for name in SUMS}, UsageSums)
    )
