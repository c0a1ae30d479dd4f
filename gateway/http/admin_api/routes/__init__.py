"""The operations of the admin API, one file for each kind of resource."""

from typing import Final

from fastapi import APIRouter

from gateway.http.admin_api.guard import GuardedRoute
from gateway.http.admin_api.routes.adapters import router as adapters
from gateway.http.admin_api.routes.audit import router as audit
from gateway.http.admin_api.routes.backends import router as backends
from gateway.http.admin_api.routes.caller import router as caller
from gateway.http.admin_api.routes.explanations import router as explanations
from gateway.http.admin_api.routes.keys import router as keys
from gateway.http.admin_api.routes.limit_state import router as limit_state
from gateway.http.admin_api.routes.limits import add_item_routes
from gateway.http.admin_api.routes.limits import router as limits
from gateway.http.admin_api.routes.organisations import router as organisations
from gateway.http.admin_api.routes.policies import router as policies
from gateway.http.admin_api.routes.prices import router as prices
from gateway.http.admin_api.routes.projects import router as projects
from gateway.http.admin_api.routes.rollouts import router as rollouts
from gateway.http.admin_api.routes.tenants import router as tenants
from gateway.http.admin_api.routes.usage import router as usage

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
    limit_items,
    prices,
    usage,
    adapters,
    explanations,
    policies,
    rollouts,
    backends,
    audit,
)
