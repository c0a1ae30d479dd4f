r"""The input of a custom tool, which a model writes as JSON inside the arguments of a function: `{"input": "…"}`, in pieces cut anywhere.

What has been read is handed out as soon as it is certain, so that a caller can show a long patch while it grows: never half of an escape,
never half of a surrogate pair. Arguments that begin otherwise are held to their end. Models make mistakes that a parser of JSON would refuse
(a raw newline, an escape like `\d`), and their meaning is clear, so nothing is refused here.
"""

import re
from typing import Final

import msgspec

from gateway.http.responses.tools import INPUT

_OPENING: Final = re.compile(rf'\s*+\{{\s*+"{INPUT}"\s*+:\s*+"')
_COULD_OPEN: Final = re.compile(rf'[\s{{":]*+(?:{"(?:".join(INPUT)}{")?" * len(INPUT)}[\s":]*+\Z'.replace("(?:i", "i", 1)[:-1])
_CERTAIN: Final = re.compile(r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*+')
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
