"""The admin API, `/admin/v1` on the admin port: who may do what stands in `rbac.py`, what is done in `routes/`.

Every change is one transaction with its audit row (`call.py`); no change is made that cannot be written down.
"""

from gateway.http.admin_api.api import PREFIX, create_admin_api
from gateway.http.admin_api.call import Parts

__all__ = ["PREFIX", "Parts", "create_admin_api"]
