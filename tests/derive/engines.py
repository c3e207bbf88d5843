"""Forwards of engines with known constants, and logs that hold them with the rules on record."""

import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from conftest import write_payloads
from nearfree.core.label import setting_key
from nearfree.core.plan import MeasurePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.derive.granularity.engine import EngineForward, EngineRules
from nearfree.derive.work_model.engine import EngineCurve, terms
from nearfree.log.events import EngineLoaded, EngineMatrix, EngineShape
from nearfree.log.names import Layout
from nearfree.log.take import take_name

from derive.questions import LOG, RESOLVER
from derive.tables.logs import make_visits

PREBUILT, BUILT = "3.22.1", "0.3.36"
SYSTEM_INFO = (
    "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | AVX512 = 1 "
    "| AVX512_VBMI = 1 | AVX512_VNNI = 1 | AVX512_BF16 = 1 | LLAMAFILE = 1 | REPACK = 1 |"
)
"""A library's system information on a CPU with every feature that rules ask for."""
SHAPE = EngineShape(layers=30, heads=9, kv_heads=3, head_dim=64)
GRID = (*range(1, 15), 16, 17, 24, 32, 33)


def matrix(kind: str, **changes: Any) -> EngineMatrix:
    """Return the matrices of an FFN's half, of a type."""
    fields = {"part": "ffn_up", "type": kind, "rows": 1536, "columns": 576, "count": 60}
    return EngineMatrix(**fields | changes)


def forward(*kinds: str, **changes: Any) -> EngineForward:
    """Return a forward whose matrices are of some types, the first of them the heaviest."""
    matrices = tuple(
        matrix(kind, part=f"part{place}", count=60 - 20 * place)
        for place, kind in enumerate(kinds or ("q4_k",))
    )
    fields: dict[str, Any] = {
        "engine": "llama_cpp",
        "release": PREBUILT,
        "matrices": matrices,
        "shape": SHAPE,
        "context": 64,
        "system_info": SYSTEM_INFO,
    }
    return EngineForward(**fields | changes)


@cache
def rules(*kinds: str, **changes: Any) -> EngineRules:
    """Return the rules on record for such a forward."""
    return EngineRules(forward(*kinds, **changes), RESOLVER)


def times(
    known: EngineRules, constants: Mapping[str, float], grid: Sequence[int]
) -> dict[int, float]:
    """Return T(N) in microseconds by constants, those that are not named by a pattern: 0.

    A constant's name is the whole of a term's, or what it ends with.
    """
    return {
        n: sum(
            amount * next((v for end, v in constants.items() if name.endswith(end)), 0.0)
            for name, amount in terms(known, n).items()
        )
        for n in grid
    }


def curve(
    known: EngineRules,
    constants: Mapping[str, float],
    *,
    name: str = "a",
    grid: Sequence[int] = GRID,
    platform: str = "cpu",
) -> EngineCurve:
    """Return a curve that was made with constants."""
    return EngineCurve(
        name=name,
        key=name,
        platform=platform,
        rules=known,
        baseline=1,
        latency_us=times(known, constants, grid),
        event_id=f"{name}#3",
    )


def setting(known: EngineForward, model: str = "small") -> Setting:
    """Return the setting of a forward."""
    return Setting(
        module="engine",
        backend=known.engine,
        dtype="float32",
        model=model,
        model_digest="0" * 12,
        release=known.release,
        file_type="q4_k_m",
        batch=known.batch,
        context=known.context,
        threads=known.threads,
        repack=known.repack,
    )


def loaded(known: EngineForward, model: str = "small") -> EngineLoaded:
    """Return the recorded event of a forward."""
    return EngineLoaded(
        engine=known.engine,
        release=known.release,
        package="@node-llama-cpp/linux-x64",
        library_sha256={"libllama.so": "a" * 64},
        header_sha256={"llama.h": "b" * 64},
        system_info=known.system_info,
        model=model,
        weights_sha256="c" * 64,
        weights_bytes=1 << 20,
        file_type="q4_k_m",
        repack=known.repack,
        matrices=known.matrices,
        shape=known.shape,
    )


def engine_log(
    layout: Layout,
    forwards: Sequence[EngineForward],
    constants: Mapping[str, float],
    *,
    ruled: bool = True,
    grid: Sequence[int] = GRID,
) -> list[str]:
    """Seal a study of forwards made with constants; return the keys of their settings.

    Without `ruled` the log has no rules of the release.
    """
    if ruled:
        for folder in (LOG.events / "sources").glob("llama_cpp*"):
            shutil.copytree(folder, layout.events / "sources" / folder.name)
    models = {forward.matrices: f"small{n}" for n, forward in enumerate(forwards)}
    settings = [setting(forward, models[forward.matrices]) for forward in forwards]
    plan = MeasurePlan(
        sweeps=tuple(Sweep(setting=setting, positions=tuple(grid)) for setting in settings),
        protocol=Interleaved(rounds=4),
        environment="cpu",
    )
    payloads: list[Any] = [loaded(forward, models[forward.matrices]) for forward in forwards]
    for setting_, known in zip(settings, forwards, strict=True):
        made = EngineRules(known, RESOLVER)
        payloads += make_visits(setting_, times(made, constants, grid), rounds=4)
    write_payloads(layout, take_name("cpu", "engines", 1, plan), plan, *payloads)
    return [setting_key(setting) for setting in settings]
