"""The dearest functions: what the library sees, and what is read from callgrind's files."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.instructions.frames import COMPILER, ROOT, FunctionCost, build, read_frames

DUMP = """
desc: Trigger: dump busy

fn=(1) frame_000000
0 3
cob=(2)
cfi=(1)
cfn=(2) _PyEval_EvalFrameDefault
calls=2 0
0 700

fn=(2)
0 40
cfn=(3) frame_000001
calls=5 0
0 90
+1 6

fn=(3)
0 9
cfn=(2)
calls=5 0
* 81
cfn=(1)
calls=4 0
0 1

totals: 930
"""


def test_a_function_costs_what_its_c_function_took_with_all_that_it_called() -> None:
    assert read_frames(DUMP, ["a.py:outer", "b.py:inner"]) == {
        "a.py:outer": FunctionCost(703, 4),
        "b.py:inner": FunctionCost(91, 5),
    }


def test_functions_without_a_name_are_left_out() -> None:
    assert read_frames(DUMP, ["a.py:outer"]) == {"a.py:outer": FunctionCost(703, 4)}


def test_two_functions_of_one_name_count_together() -> None:
    assert read_frames(DUMP, ["a.py:<lambda>", "a.py:<lambda>"]) == {"a.py:<lambda>": FunctionCost(794, 9)}


PROGRAM = """
import asyncio, sys
from pathlib import Path
from bench.instructions.frames import Frames

def called():
    return 1

async def waits():
    await asyncio.sleep(0)
    return called()

frames = Frames(Path(sys.argv[1]))
frames.begin()
result = asyncio.run(waits())
print("\\n".join(frames.names()))
assert result == 1
"""


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C compiler")
def test_the_library_names_functions_and_coroutines_that_were_called(tmp_path: Path) -> None:
    build(tmp_path)
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT)
    seen = ended.stdout.split("\n")
    assert "<string>:called" in seen
    assert "<string>:waits" in seen
    assert f"asyncio/tasks.py:{asyncio.sleep.__name__}" in seen


def test_without_a_compiler_the_message_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="cc is not installed"):
        build(tmp_path)
