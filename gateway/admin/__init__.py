"""The admin API, `/admin/v1` on the admin port: `access.py` holds the permissions, `routes/` the operations.

Every change is one transaction together with its audit row (`call.py`); a change that cannot be audited is not made.
"""

from gateway.admin.api import PREFIX, admin_api_routes, create_admin_api
from gateway.admin.call import Parts

__all__ = ["PREFIX", "Parts", "admin_api_routes", "create_admin_api"]
