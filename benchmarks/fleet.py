"""A fleet of simulated GPUs: a separate project whose log is filled through the library.

Nothing is timed: each study's latencies rise in steps of N, and its events are marked `simulated`.
The functions that fill and change the fleet run in its folder.
"""

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import yaml
from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.core.plan import MeasurePlan, Plan, ProbePlan, RequestedPlan, Sweep, plan_digest
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.derive.outlook.outlook import write_outlook
from nearfree.derive.predict.predictions import write_predictions
from nearfree.derive.score.validation import write_validation
from nearfree.derive.tables.boundaries import write_boundaries
from nearfree.derive.tables.project import project
from nearfree.hardware.platforms import Platform
from nearfree.log.events import (
    BandwidthPeak,
    ComputePeak,
    Fingerprint,
    HardwareProbed,
    LatencyMeasured,
    Payload,
    RunStarted,
    WorkCounted,
)
from nearfree.log.names import Layout
from nearfree.log.run import describe_run
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.show.figures.stage import draw
from nearfree.units import GFLOP_PER_TFLOP

ROOT = Path(__file__).parents[1]
SETTINGS, ROUNDS, STEP_TOKENS = 5, 3, 64
KINDS: tuple[dict[str, Any], ...] = (
    {"module": "dense_ffn", "backend": "torch", "batch": [1, 2, 4, 8, 16]},
    {"module": "moe_ffn", "backend": "vllm", "routing": ["balanced"], "top_k": [1, 2, 4, 5, 8]},
    {"module": "moe_ffn", "backend": "sglang", "routing": ["skewed"], "top_k": [1, 2, 4, 5, 8]},
    {"module": "attention", "backend": "flash_attn", "api": "kvcache"},
    {"module": "attention", "backend": "flashinfer_fa2", "page_size": 16},
)
CONTEXTS = [256, 1024, 4096, 16384, 32768]


def make_fleet(folder: Path, platforms: int, studies: int, points: int) -> list[str]:
    """Write a project with the given numbers of platforms and studies; return the platforms.

    Parameters
    ----------
    points
        Number of points T(N) per study: a multiple of its five settings, at least 20.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("Snakefile", "rules", "workflow", "envs", "profiles"):
        (folder / part).symlink_to(ROOT / part)
    config = folder / "config"
    shutil.copytree(ROOT / "config", config, ignore=shutil.ignore_patterns("takes.yaml"))
    layout = Layout(folder / "results")
    for scope in ("public", "sources"):
        shutil.copytree(ROOT / "results/events" / scope, layout.events / scope)
        for take in layout.takes(scope):
            ensure_sealed(layout, take)
    sheets = Config(config).platforms
    fleet = dict(_copies(sheets, platforms))
    _write(config / "platforms.yaml", msgspec.to_builtins(sheets | fleet))
    _write(
        config / "studies.yaml",
        {
            f"study_{number:03}": _study(number, list(fleet), points // SETTINGS)
            for number in range(studies)
        },
    )
    site = yaml.safe_load((config / "config.yaml").read_text())
    overrides = {"here": list(fleet), "sets": ["default"], "curves": "curves"}
    _write(config / "config.yaml", site | overrides)
    (folder / "curves").mkdir()
    for name in fleet:
        (folder / "curves" / f"{name}.json").write_text(json.dumps({"platform": name}))
    return list(fleet)


def _write(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _copies(datasheets: dict[str, Platform], count: int) -> Iterator[tuple[str, Platform]]:
    gpus = [name for name, sheet in datasheets.items() if sheet.balance("bfloat16")]
    for number in range(count):
        name = gpus[number % len(gpus)]
        yield f"{name}_{number:03}", msgspec.structs.replace(datasheets[name], aliases=())


def _study(number: int, platforms: list[str], positions: int) -> dict[str, object]:
    kind = KINDS[number % len(KINDS)]
    width = 256 * (1 + number)
    shape: dict[str, object] = {"d_model": 2048, "d_ff": width}
    if kind["module"] == "moe_ffn":
        shape |= {"experts": 8}
    if kind["module"] == "attention":
        shape = {"heads": 8 * (1 + number), "kv_heads": 8, "head_dim": 128}
        kind |= {"context": CONTEXTS}
    grid = sorted({1, 2, 4, 8, *range(12, 8 + 4 * (positions - 3), 4)})
    return kind | {
        "platforms": platforms,
        "shape": shape,
        "dtype": "bfloat16",
        "positions": grid,
        "protocol": {"name": "interleaved", "rounds": ROUNDS, "forwards": 1},
    }


def fill(scope: str) -> None:
    """Seal every take of a platform that the config requests and that is not sealed yet."""
    config = Config(Path("config"))
    for stream, plan in Plans(config, scope).all().items():
        seal(config, scope, stream, plan)


def derive(scope: str) -> None:
    """Make a scope's tables and figures, as the rules do; the public scope depends on no other."""
    config, layout = Config(Path("config")), Layout(Path("results"))
    site = config.site
    project(layout, scope, config.datasheets(scope))
    if scope == "sources":
        return
    write_boundaries(layout, scope, tolerances=site.tolerances, epsilon=site.epsilon)
    write_predictions(layout, scope, config)
    write_validation(layout, scope)
    if scope == "public":
        write_outlook(layout, scope, config)
    draw(layout, scope, site.epsilon)


def fill_large(number: int, events: int) -> None:
    """Seal one take of a large scope: `events` visits over a thousand points."""
    grid = tuple(range(1, 201))
    width = 256 * (1 + number)
    sweeps = tuple(
        Sweep(
            setting=Setting(
                module="dense_ffn",
                backend="torch",
                dtype="bfloat16",
                batch=batch,
                d_model=1024,
                d_ff=width,
            ),
            positions=grid,
        )
        for batch in (1, 2, 4, 8, 16)
    )
    rounds = events // (len(grid) * len(sweeps))
    protocol = Interleaved(rounds=rounds, forwards=1)
    plan = MeasurePlan(sweeps=sweeps, protocol=protocol, environment="cpu")
    _seal("h20", f"study_{number:03}", 1, plan, make_visits(plan, "h20", 1))


def seal(config: Config, scope: str, stream: str, plan: RequestedPlan) -> None:
    """Seal the take of a probe or of a study, if it is not sealed yet."""
    take = config.take(scope, stream)
    events: Iterable[Payload] = [make_probe(config.platform(scope))]
    if isinstance(plan, MeasurePlan):
        events = chain(count_work(plan), make_visits(plan, scope, take))
    _seal(scope, stream, take, plan, events)


def _seal(scope: str, stream: str, take: int, plan: Plan, events: Iterable[Payload]) -> None:
    def observe(open_take: OpenTake) -> float:
        for payload in events:
            open_take.append(payload, sync=False)
        open_take.sync()
        return 1.0

    ensure_take(
        Layout(Path("results")),
        take_name(scope, stream, take, plan),
        plan,
        lambda attempt: make_start(plan, attempt),
        observe,
    )


def make_start(plan: Plan, attempt: int) -> RunStarted:
    """Return the record of a run's start; its constant part is computed once."""
    digest = plan_digest(plan)
    return msgspec.structs.replace(_described_run(), plan=plan, plan_digest=digest, attempt=attempt)


@cache
def _described_run() -> RunStarted:
    return describe_run("benchmarks/fleet.py", ProbePlan(dtypes=()), 1)


def make_probe(sheet: Platform) -> HardwareProbed:
    """Return a probe that reports the datasheet's numbers."""
    return HardwareProbed(
        fingerprint=Fingerprint(
            kind="simulated",
            model=sheet.vendor_name or "GPU",
            features=(),
            cores=sheet.sm_count or 1,
            caches={},
        ),
        compute=(
            ComputePeak(
                dtype="bfloat16",
                gflop_s=sheet.peak_tflops["bfloat16"] * GFLOP_PER_TFLOP,
                size=1,
                samples=(1.0,),
                guarded=False,
            ),
        ),
        bandwidth=(
            BandwidthPeak(
                method="stream", gb_s=sheet.bandwidth_gb_s or 1, bytes_read=1, samples=(1.0,)
            ),
        ),
        threads=1,
    )


def count_work(plan: MeasurePlan) -> Iterator[WorkCounted]:
    """Yield the work of every point of a plan."""
    for sweep in plan.sweeps:
        for n in sweep.positions:
            tokens = sweep.setting.batch * n
            blocks = math.ceil(tokens / STEP_TOKENS)
            work = ExecutedWork(
                flop_logical=tokens * 10**7,
                flop_executed=blocks * STEP_TOKENS * 10**7,
                bytes_compulsory=10**8 + tokens * 10**4,
                blocks=blocks,
                block_rows=STEP_TOKENS,
                basis="benchmarks/fleet.py",
            )
            yield WorkCounted(setting=sweep.setting, n=n, work=work, kernels=("simulated",))


def make_visits(plan: MeasurePlan, scope: str, take: int) -> Iterator[LatencyMeasured]:
    """Yield every visit of a plan, round by round; another take is a little slower."""
    base = 20.0 + take + sum(scope.encode()) % 17
    for number in range(plan.protocol.rounds):
        order = 0
        for sweep in plan.sweeps:
            for n in sweep.positions:
                wall_us = latency_us(sweep.setting, n, base) * (1 + number / 1000)
                yield LatencyMeasured(
                    setting=sweep.setting,
                    n=n,
                    baseline=sweep.baseline,
                    round=number,
                    order=order,
                    wall_us=(wall_us,),
                    process_us=(wall_us,),
                    dirty=(False,),
                    cache="cold",
                    protocol=plan.protocol,
                    round_points=plan.points_a_round,
                    timer="simulated",
                    launch="graph",
                )
                order += 1


def latency_us(setting: Setting, n: int, base: float) -> float:
    """Return T(N) in microseconds, constant until b N tokens fill the next block."""
    tokens = setting.batch * n * (setting.top_k or 1)
    return round(base * (1 + 0.15 * (math.ceil(tokens / STEP_TOKENS) - 1)), 3)
