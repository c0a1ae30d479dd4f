"""Alerts and recorded series as rule files of Prometheus."""

from typing import Any, Final

import yaml

from gateway.dashboards.alerts import Alert
from gateway.dashboards.objectives import ANSWERED, AVAILABILITY, KEPT, PROMISES, alert_groups
from gateway.docs_links import linked

RECORDED_EVERY: Final = "30s"
"""Between two evaluations of the recorded shares; a window of 5 minutes has ten."""
RULES_FILE: Final = "tidegate.rules.yml"
HEAD: Final = "# Made by `tidegate export-dashboards`. Each alert has a runbook; labels.severity is page or ticket.\n"


def rules(availability: float = AVAILABILITY, promises: float = PROMISES, docs: str = "") -> str:
    """The rule file, as YAML.

    Args:
        availability: the share of requests that have to be answered.
        promises: the share of promises that have to be kept.
        docs: the address that the runbooks are below, with a slash at its end; empty for their paths in the project.
    """
    recorded = [{"record": name, "expr": expr} for objective in (ANSWERED, KEPT) for name, expr in objective.recorded()]
    groups: list[dict[str, Any]] = [{"name": "tidegate-recorded", "interval": RECORDED_EVERY, "rules": recorded}]
    for group in alert_groups(availability, promises):
        groups.append({"name": group.name, "rules": [_rule(alert, docs) for alert in group.alerts]})
    return HEAD + yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


def _rule(alert: Alert, docs: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.for_} if alert.for_ else {}),
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook_url": linked(alert.runbook, docs)},
    }


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as people write them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        """Indent the items of lists, which the base class leaves at the level of their key."""
        return super().increase_indent(flow, False)
