"""The part of `interpret` that fetches the images of a chat that are named by URL, before anything is counted or held: from here on the
request is the same as if its caller had sent the images themselves.

The wait is the caller's own: it counts towards its deadline, and not as time that the gateway has taken.
"""

import asyncio
from math import isfinite
from typing import NoReturn

from domain import retry_after
from domain.ask import Ask
from domain.faults import NEVER, Fault, Kind
from gateway.deps import Deps
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.timeouts import deadline_passed
from gateway.http.image_fetch import ImageBudget, ImageRefused
from gateway.http.openai.checks import refuse, shown
from gateway.http.openai.messages import refuse_link
from gateway.story import Story
from policies.compile import TenantPolicy


class _CallerWaits(Listener):
    """Ends the fetch when the caller leaves."""

    def __init__(self, fetch: "asyncio.Task[dict[str, str]]") -> None:
        self._fetch = fetch

    def gone(self) -> None:
        self._fetch.cancel()


async def fetch_images(ask: Ask, policy: TenantPolicy, tenant: str, exchange: Exchange, story: Story, deps: Deps) -> dict[str, str]:
    """The images of an Ask as `data:` URLs, by their URLs.

    Raises:
        Fault: INVALID_VALUE with the path of an image that the policy does not let the gateway fetch, or that could not be fetched;
            BODY_TOO_LARGE where the request is too large with them; CLIENT_GONE or DEADLINE_PASSED.
    """
    rules, links = policy.image_urls, ask.image_links
    if rules is None:
        refuse_link(links[0].param)
    if len(links) > rules.max_images:
        bound = f"at most {rules.max_images} are allowed. The policy of your tenant sets this bound (image_urls.max_images)."
        refuse(f"Invalid value for '{links[0].param}': {len(links)} images are named by URL, {bound}", links[0].param)
    if exchange.gone:
        raise caller_gone()
    most, body_bytes = policy.caps.body_bytes, story.asked.request_bytes
    # what has come is counted while the rest is on its way: a slow image would else hold the others uncounted
    budget = ImageBudget(exchange.most_bytes(most) - body_bytes, lambda image_bytes: exchange.grow(body_bytes + image_bytes, most))
    fetch = deps.loop.create_task(deps.images.fetch([link.url for link in links], rules, budget, tenant))
    exchange.listener = _CallerWaits(fetch)
    try:
        left_s = story.asked.end_at - deps.clock()
        async with asyncio.timeout(max(0.0, left_s) if isfinite(left_s) else None):
            images = await fetch
    except ImageRefused as refused:
        _refuse(refused, ask)
    except TimeoutError:
        raise deadline_passed(story) from None
    except asyncio.CancelledError:
        if not exchange.gone:
            raise
        raise caller_gone() from None
    finally:
        fetch.cancel()
        exchange.listener = Listener()
    story.asked.image_bytes = sum([len(images[link.url]) for link in links])
    exchange.grow(body_bytes + story.asked.image_bytes, most)
    story.body_at = deps.clock()
    return images


def _refuse(refused: ImageRefused, ask: Ask) -> NoReturn:
    param = next(link.param for link in ask.image_links if link.url == refused.url)
    host = refused.url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    raise Fault(
        Kind.INVALID_VALUE,
        f"Invalid value for '{param}': the image at {shown(host)} could not be fetched: {refused.reason}.",
        param=param,
        retry=retry_after.SOON if refused.again else NEVER,
        detail=f"image at {shown(host)}: {refused.detail}",
    )
