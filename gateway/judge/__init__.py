"""The judge: answers of tenants that allow it are scored by a model of the fleet, beside the path of requests (docs/reference/judge.md)."""
