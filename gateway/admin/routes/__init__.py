"""The operations of the admin API, one file for each kind of resource."""

from typing import Final

from fastapi import APIRouter

from gateway.admin.guard import GuardedRoute
from gateway.admin.routes.adapters import router as adapters
from gateway.admin.routes.alerts import router as alerts
from gateway.admin.routes.audit import router as audit
from gateway.admin.routes.backends import router as backends
from gateway.admin.routes.cache import router as cache
from gateway.admin.routes.caller import router as caller
from gateway.admin.routes.dashboards import router as dashboards
from gateway.admin.routes.explanations import router as explanations
from gateway.admin.routes.feedback import router as feedback
from gateway.admin.routes.forecasts import router as forecasts
from gateway.admin.routes.gateway import router as gateway
from gateway.admin.routes.guards import router as guards
from gateway.admin.routes.keys import router as keys
from gateway.admin.routes.limits import add_item_routes
from gateway.admin.routes.limits import limit_state_router as limit_state
from gateway.admin.routes.limits import router as limits
from gateway.admin.routes.live import router as live
from gateway.admin.routes.models import router as models
from gateway.admin.routes.organisations import router as organisations
from gateway.admin.routes.policies import router as policies
from gateway.admin.routes.prices import router as prices
from gateway.admin.routes.projects import router as projects
from gateway.admin.routes.queues import router as queues
from gateway.admin.routes.requests import router as requests
from gateway.admin.routes.rollouts import router as rollouts
from gateway.admin.routes.simulations import router as simulations
from gateway.admin.routes.tenants import router as tenants
from gateway.admin.routes.usage import router as usage

limit_items = APIRouter(route_class=GuardedRoute, tags=["Limits"])
add_item_routes(limit_items)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    caller,
    organisations,
    tenants,
    projects,
    keys,
    limits,
    limit_state,
    alerts,
    forecasts,
    limit_items,
    prices,
    usage,
    adapters,
    models,
    cache,
    guards,
    queues,
    explanations,
    feedback,
    requests,
    policies,
    simulations,
    rollouts,
    backends,
    gateway,
    live,
    dashboards,
    audit,
)
