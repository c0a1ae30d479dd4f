"""Instructions by Python function: a small library that gives each one a C function of its own (`frames.c`), and what callgrind says of it.

CPython evaluates most Python functions in one C function, so that callgrind by itself cannot tell them apart.
"""

import ctypes
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

LIBRARY: Final = "frames.so"
COMPILER: Final = "cc"
ROOT: Final = Path(__file__).parents[2]

_POSITION: Final = re.compile(
    r"^(?P<field>c?fn)=\((?P<id>\d+)\)(?: (?P<name>.*))?$|^calls=(?P<calls>\d+)|^[+\-*\d]\S* (?P<cost>\d+)$", re.M
)
_FRAME: Final = re.compile(r"frame_([0-3]{6})")


class FunctionCost(NamedTuple):
    """What a function took with all that it called. A function that calls itself counts inner calls twice."""

    instructions: int
    calls: int


def build(home: Path) -> None:
    """Compile the library into a folder. Raises RuntimeError where there is no compiler or no header of CPython."""
    if shutil.which(COMPILER) is None:
        raise RuntimeError(f"{COMPILER} is not installed, and --steps needs a C compiler")
    source = Path(__file__).with_name("frames.c")
    include = sysconfig.get_paths()["include"]
    command = [COMPILER, "-O0", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(home / LIBRARY)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"frames.c cannot be compiled: {ended.stderr[-1000:]}")


class Frames:
    """The library in this process.

    Args:
        home: the folder that `build` was given.
    """

    def __init__(self, home: Path) -> None:
        self._library = ctypes.PyDLL(str(home / LIBRARY))
        self._library.frames_seen.restype = ctypes.py_object

    def begin(self) -> None:
        """Give each Python function that is called from now on a C function."""
        self._library.frames_begin()

    def names(self) -> list[str]:
        """The Python functions in the order of their numbers."""
        codes: list[CodeType] = self._library.frames_seen()
        return [f"{_shown(code.co_filename)}:{code.co_qualname}" for code in codes]


def _shown(file: str) -> str:
    """A file by its path in this repository, or by its last two parts."""
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "/".join(path.parts[-2:])


def read_frames(dump: str, names: list[str]) -> dict[str, FunctionCost]:
    """The Python functions in one file that callgrind wrote.

    Args:
        dump: the file's text.
        names: as `Frames.names` returned them in the process.
    """
    known: dict[str, str] = {}
    costs: dict[str, int] = {}
    calls: dict[str, int] = {}
    function = called = ""
    for found in _POSITION.finditer(dump):
        if (field := found["field"]) is not None:
            if found["name"] is not None:
                known[found["id"]] = found["name"]
            name = known[found["id"]]
            function, called = (name, called) if field == "fn" else (function, name)
        elif found["calls"] is not None:
            calls[called] = calls.get(called, 0) + int(found["calls"])
        else:
            costs[function] = costs.get(function, 0) + int(found["cost"])
    by_name: dict[str, FunctionCost] = {}
    for symbol, cost in costs.items():
        if (frame := _FRAME.search(symbol)) is not None and (at := int(frame[1], 4)) < len(names):
            had = by_name.get(names[at], FunctionCost(0, 0))
            by_name[names[at]] = FunctionCost(had.instructions + cost, had.calls + calls.get(symbol, 0))
    return by_name
