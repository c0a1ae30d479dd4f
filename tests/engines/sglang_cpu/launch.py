"""Starts SGLang's server on CPU: `python launch.py OPTIONS`, the options of `sglang.launch_server`.

torchvision on the index is built for CUDA and fails to load its operators beside a CPU torch, and transformers imports it; with
the two that it looks for defined here, for no device, the import goes through. SGLang's own processes import this file too.
"""

import sys

import torch

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
