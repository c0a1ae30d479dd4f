"""The pages that messages name, as addresses that terminals and editors open.

Messages are written with a page's path in the project, `docs/reference/engines.md`, by code that knows no settings. Whatever prints or
sends them puts an address in its place: below the variable `TIDEGATE_DOCS_URL` or `docs_url` of the settings, else of the installed pages
on this machine, else the path stays. Answers of the two ports never take the installed pages: a folder of this machine is none of the
caller's. Pure.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config.addresses import DOCS_VARIABLE, checked_docs_url

INSTALLED: Final = Path(__file__).resolve().parents[1] / "docs"
"""The pages beside the packages, in a checkout or an image that has them."""

_PAGE: Final = re.compile(r"(?<![\w/.-])docs/((?:[a-z]+/)*[\w-]+\.md(?:#[\w-]+)?)")


def docs_base(written: object, environ: Mapping[str, str], installed: Path = INSTALLED) -> str:
    """The address that pages are below, with a slash at its end; empty where there is none.

    Args:
        written: `docs_url` as the settings have it, checked or not; one that is no address counts as none.
        environ: may have the variable.
        installed: the folder that pages may be in.
    """
    for url in (environ.get(DOCS_VARIABLE), written):
        if isinstance(url, str) and url:
            try:
                return f"{checked_docs_url(url).rstrip('/')}/"
            except ValueError:
                continue
    return f"{installed.as_uri()}/" if installed.is_dir() else ""


def linked(text: str, base: str) -> str:
    """The text with an address in place of each page's path; unchanged where `base` is empty."""
    return _PAGE.sub(lambda page: f"{base}{page[1]}", text) if base and "docs/" in text else text
