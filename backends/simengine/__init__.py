"""A simulated engine: an HTTP server that batches, prefills, pages its KV cache and fails like vLLM or SGLang, without a GPU.

Users try policies and failure handling on it, and the tests and benchmarks of Tidegate run on it. `batching.py` is the engine, pure and on
virtual time; `server.py` gives it a socket; `faults.py` lists every fault that it can simulate.
"""

from backends.simengine.faults import FaultRule
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings

__all__ = ["FaultRule", "SimEngine", "SimSettings"]
