"""A small simulated machine: two curves, a model of both, and a setting that is refused."""

import hashlib
from pathlib import Path
from typing import Any

from conftest import make_setting
from msgspec import json
from nearfree.core.plan import MeasurePlan, ProbePlan, Sweep
from nearfree.core.protocols import Adaptive, Timing
from nearfree.core.setting import Setting
from nearfree.hardware.simulated import Curve, CurveFile, Forward, Machine, Part, Refused

GRID = (1, 2, 4, 8, 9, 16, 32)
FFN = make_setting(dtype="bfloat16")
EXPERTS = make_setting(
    module="moe_ffn", backend="vllm", dtype="bfloat16", experts=8, top_k=2, routing="balanced"
)
MODEL = make_setting(module="model", backend="flash_attn", dtype="bfloat16", model="tiny")
REFUSED = make_setting(backend="torch_sdpa", dtype="bfloat16")
SMALL = Adaptive(rounds=4, looks=(4, 8))


def knee(n: int) -> float:
    """Return T(N) in microseconds: flat up to 8, then half as much again."""
    return 20.0 if n <= 8 else 30.0


def make_file(**changes: Any) -> CurveFile:
    """Return a curve file of h20 with some of its fields changed."""
    latency_us = tuple(map(knee, GRID))
    fields: dict[str, Any] = {
        "platform": "h20",
        "device": "NVIDIA H20",
        "dtype": "bfloat16",
        "features": ("sm_90",),
        "cores": 78,
        "cache_bytes": 60 * 1024**2,
        "peak_tflops": {"bfloat16": 148.0},
        "bandwidth_gb_s": 4000.0,
        "predictor": "work_model",
        "code": "0123456789abcdef",
        "releases": {"vllm": "0.33.0"},
        "curves": (
            Curve(setting=FFN, n=GRID, latency_us=latency_us),
            Curve(
                setting=EXPERTS,
                release="vllm==0.33.0",
                n=GRID,
                latency_us=tuple(10.0 + n for n in GRID),
                block_rows=(16,) * len(GRID),
            ),
        ),
        "forwards": (
            Forward(
                setting=MODEL,
                parts=(
                    Part(role="Dense FFN", count=1, setting=FFN),
                    Part(role="MoE FFN", count=3, setting=EXPERTS),
                ),
            ),
        ),
        "refused": (Refused(setting=REFUSED, refusal="no rules are read"),),
    }
    return CurveFile(**(fields | changes))


def make_machine(**changes: Any) -> Machine:
    """Return the machine of such a file."""
    file = make_file(**changes)
    return Machine(file, hashlib.sha256(json.encode(file)).hexdigest())


def write_file(path: Path, **changes: Any) -> Path:
    """Write such a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.encode(make_file(**changes)))
    return path


def simulated_plan(
    machine: Machine, *settings: Setting, protocol: Timing = SMALL, grid: tuple[int, ...] = GRID
) -> MeasurePlan:
    """Return a plan of settings on a simulated machine; without settings, of the FFN."""
    sweeps = tuple(Sweep(setting=setting, positions=grid) for setting in settings or (FFN,))
    return MeasurePlan(sweeps=sweeps, protocol=protocol, environment="vllm", curves=machine.digest)


def simulated_probe(machine: Machine) -> ProbePlan:
    """Return the probe's plan."""
    return ProbePlan(dtypes=("bfloat16", "float32"), curves=machine.digest)
