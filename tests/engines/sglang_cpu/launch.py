"""Starts SGLang's server on CPU: `python launch.py OPTIONS`, the options of `sglang.launch_server`.

torchvision on the index is built for CUDA and fails to load its operators beside a CPU torch, and transformers imports it; with
the two that it looks for defined here, for no device, the import goes through. SGLang's own processes import this file too.

Its LoRA layers ask for pinned memory, which only a machine with an accelerator has; here all memory is ordinary.

Its load push is bound on every interface or not at all (0.5.23); here a wildcard means loopback, so that nothing of a test is
open to the network.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
import zmq

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _unpinned(make: Callable[..., torch.Tensor], *given: object, pin_memory: bool = False, **named: object) -> torch.Tensor:
    return make(*given, **named)


for _name in ("tensor", "empty", "zeros"):
    setattr(torch, _name, partial(_unpinned, getattr(torch, _name)))
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[assignment,method-assign]

_bind = zmq.Socket.bind


def _bind_loopback(socket: "zmq.Socket[bytes]", address: str) -> object:
    return _bind(socket, address.replace("tcp://*:", "tcp://127.0.0.1:"))


zmq.Socket.bind = _bind_loopback  # type: ignore[method-assign]  # no setting of SGLang does it

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
