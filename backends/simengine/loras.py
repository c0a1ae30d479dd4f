"""The simulated engine's adapters, loaded and unloaded at run time as on vLLM and SGLang.

A load may name any path; a path with `nosuch` in it does not exist. Adapters write other texts than the model, and have their own prefixes
in the cache, because both depend on the requested name.
"""

import asyncio
from typing import Final

import msgspec

from backends.simengine import shapes
from backends.simengine.connection import SimConnection
from backends.simengine.settings import SimSettings

LOAD: Final = {"vllm": "/v1/load_lora_adapter", "sglang": "/load_lora_adapter"}
UNLOAD: Final = {"vllm": "/v1/unload_lora_adapter", "sglang": "/unload_lora_adapter"}
NOWHERE: Final = "nosuch"


class _Order(msgspec.Struct):
    lora_name: str
    lora_path: str = ""


class Loras:
    """The adapters of one engine process."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self.loaded: dict[str, str] = dict.fromkeys(settings.loras, "at start")
        """The loaded adapters: path by name."""
        self.loads = 0
        """Loads that were answered with 200."""
        self.most = len(self.loaded)
        """The most adapters that were ever loaded at once."""

    def cards(self) -> list[dict[str, object]]:
        """The adapters' entries in the model list."""
        base = self._settings.models[0]
        return [{"id": name, "object": "model", "root": path, "parent": base} for name, path in self.loaded.items()]

    def order(self, connection: SimConnection) -> bool:
        """Answer a call to load or unload an adapter; False when the request is none."""
        dialect = self._settings.dialect
        path = connection.path
        if not self._settings.max_loras or connection.method != "POST" or path not in (LOAD[dialect], UNLOAD[dialect]):
            return False
        try:
            order = msgspec.json.decode(connection.body, type=_Order)
        except msgspec.DecodeError:
            self._refuse(connection, 400, "lora_name and lora_path needed", "InvalidUserInput")
            return True
        if path == UNLOAD[dialect]:
            self._unload(connection, order)
        else:
            wait_s = self._settings.lora_load_s / self._settings.speed
            asyncio.get_running_loop().call_later(wait_s, self._load, connection, order)
        return True

    def _load(self, connection: SimConnection, order: _Order) -> None:
        name = order.lora_name
        if name in self.loaded:
            message = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
            )
            self._refuse(connection, 400, message, "InvalidUserInput")
        elif NOWHERE in order.lora_path or not order.lora_path:
            self._refuse(connection, 404, f"Loading lora {name} failed: No adapter found for {order.lora_path}", "NotFoundError")
        elif len(self.loaded) >= self._settings.max_loras:
            self._refuse(connection, 400, f"no slot for {name}: {len(self.loaded)} adapters are loaded", "BadRequestError")
        else:
            self.loaded[name] = order.lora_path
            self.loads += 1
            self.most = max(self.most, len(self.loaded))
            connection.reply(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), "text/plain")

    def _unload(self, connection: SimConnection, order: _Order) -> None:
        if self.loaded.pop(order.lora_name, None) is None:
            self._refuse(connection, 404, f"The lora adapter '{order.lora_name}' cannot be found.", "NotFoundError")
        else:
            connection.reply(200, f"Success: LoRA adapter '{order.lora_name}' removed successfully.".encode(), "text/plain")

    def _refuse(self, connection: SimConnection, status: int, message: str, kind: str) -> None:
        connection.reply(status, shapes.error(self._settings.dialect, status, message, kind))
