"""The process: a JSON line in is one forward to run, a JSON line out is what it executed.

Arguments: the package, the folder of its pinned kernel files, and the GPU's name, by which a
release looks for a tuned file. It runs the release's own `fused_experts_impl`, so that its choice
of block sizes, of the path, of the grid and both matmuls are the release's.
"""

import json
import logging
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
from interpreter import compiled, names
from interpreter.dots import Dots
from interpreter.layer import Layer
from interpreter.stubs import Stubs

MODULES = {
    "vllm": "vllm.model_executor.layers.fused_moe.fused_moe",
    "sglang": "sglang.srt.layers.moe.fused_moe_triton.fused_moe",
}
OPTIONS = {"vllm": {}, "sglang": {"filter_expert": False}}
"""All experts are on one GPU, which SGLang takes as an option."""


def main(package: str, folder: str, device: str) -> None:
    """Answer one forward after another until the input ends."""
    logging.disable()
    torch.set_num_threads(1)
    compiled.install()
    sys.meta_path.insert(0, Stubs(Path(folder), getattr(names, package)(device)))
    forward = import_module(MODULES[package]).fused_experts_impl
    options = OPTIONS[package]
    dots, layer = Dots(), cache(Layer)
    for line in sys.stdin:
        point = json.loads(line)
        ids = torch.tensor(point["ids"], dtype=torch.int32)
        shape = (point["experts"], point["d_model"], point["d_ff"])
        experts = layer(*shape, getattr(torch, point["dtype"]))
        x, weights = experts.tokens(len(ids)), experts.weights(ids)
        out = forward(x, experts.w1, experts.w2, weights, ids, inplace=False, **options)
        flop, rows = dots.take()
        expected = experts.reference(x, weights, ids)
        error = float((out.double() - expected).abs().max() / expected.abs().max())
        print(json.dumps({"flop": flop, "rows": rows, "error": error}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
