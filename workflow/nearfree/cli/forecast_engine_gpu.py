"""`nearfree predict --engine llama_cpp` on an NVIDIA GPU: N_max by the rules of its source."""

import argparse
from itertools import product
from pathlib import Path

from nearfree.backends.records import LLAMA_CPP_CUDA
from nearfree.cli.common import json_text, layout_of
from nearfree.cli.deployment_options import refuse_options
from nearfree.config.files import Config
from nearfree.decoders.config_file import config_file
from nearfree.derive.granularity.engine import EngineForward
from nearfree.derive.granularity.engine_cuda import CudaEngineRules
from nearfree.derive.granularity.releases import Release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.engine_on_gpu import gpu_forecast
from nearfree.derive.predict.forecast.expand_deployments import check_release
from nearfree.errors import ConfigError
from nearfree.gguf.header import refuse_part
from nearfree.gguf.reader import read_header
from nearfree.models.gguf_forward import matrices_of, shape_of
from nearfree.show.text.engine_forecast import gpu_engine_json, gpu_engine_lines

_UNUSED = ("threads", "no_repack", "cpu_flags", "context", "epsilon")
"""Options of a forward on a CPU, and those of T(N), which is not predicted on a GPU."""


def predict_engine_on_gpus(
    args: argparse.Namespace, config: Config, engine: str, release: str, platforms: list[str]
) -> int:
    """Print N_max by rules, and the steps that they name, of a GGUF file's forward on GPUs.

    Raises
    ------
    NearfreeError
        The file or the release is unknown, a rule is missing, or a GPU's rules are not read.
    """
    refuse_options(args, _UNUSED, f"on a GPU, where {engine} is predicted by its rules alone",
                   "name a CPU")  # fmt: skip
    capabilities = {name: _capability(config, name, engine) for name in platforms}
    answerer = Answerer(layout_of(args), config, offline=not args.online)
    check_release(config, answerer, Release(LLAMA_CPP_CUDA, release))
    forecasts = []
    for name, model, batch in product(platforms, args.model, args.batch or [1]):
        header = read_header(config_file(Path(model)))
        refuse_part(header)
        forward = EngineForward(
            engine=engine,
            release=release,
            matrices=matrices_of(header),
            shape=shape_of(header),
            batch=batch,
        )
        rules = CudaEngineRules(forward, capabilities[name], answerer.resolver)
        forecasts.append(({"model": model, "platform": name}, gpu_forecast(rules)))
    if args.format == "json":
        print(json_text([gpu_engine_json(*answer) for answer in forecasts]))
    else:
        print("\n\n".join("\n".join(gpu_engine_lines(*answer)) for answer in forecasts))
    return 0


def _capability(config: Config, name: str, engine: str) -> int:
    """Return a GPU's compute capability; ConfigError if it is none of NVIDIA's."""
    platform = config.platforms[name]
    if platform.kind != "cuda" or platform.sm is None:
        raise ConfigError(
            f"{engine}'s kernels on {name} are not read: they are chosen by the compute capability "
            "of an NVIDIA GPU",
            remedy="Choose an NVIDIA GPU, or a CPU",
        )
    return platform.sm
