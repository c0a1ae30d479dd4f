"""Stands in for SGLang's kernels, which exist for CUDA only: every name can be imported, and calling one says so.

On a CPU without AMX SGLang's layers use their torch forms and call none of these. Found by being first on PYTHONPATH.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

__version__ = "0.0.0"


class Missing:
    """A kernel that is not there."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_args: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} is a CUDA kernel; it is not there on this CPU")

    def __getattr__(self, name: str) -> "Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")


def __getattr__(name: str) -> Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(f"sgl_kernel.{name}")


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`import sgl_kernel.anything` gives an empty module of such names."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
        module.__getattr__ = __getattr__  # type: ignore[method-assign]  # PEP 562, on a module that is made here


__path__: list[str] = []
sys.meta_path.append(Submodules())
