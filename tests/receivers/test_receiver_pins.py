"""The page of traces names the version of the receiver that is run."""

import re

from tests.engines.processes import ROOT
from tests.receivers.test_phoenix import version


def test_the_page_names_the_version_of_the_lock_file() -> None:
    locked = (ROOT / "requirements-phoenix.lock").read_text()
    assert re.search(rf"^arize-phoenix=={re.escape(version())} ", locked, re.MULTILINE)
    assert f"`arize-phoenix` {version()}" in (ROOT / "docs/reference/traces.md").read_text()
