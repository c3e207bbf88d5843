"""Whole logs with always the same bytes: probes, studies with a knee, and the paper's values."""

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from conftest import CLOCK, make_setting, make_started, write_payloads
from msgspec import structs
from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.yaml_file import read_entries
from nearfree.core.plan import MeasurePlan, ProbePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.derive.jobs import Job, make
from nearfree.derive.stages import STAGES
from nearfree.log.events import (
    BandwidthPeak,
    ComputePeak,
    Event,
    Fingerprint,
    HardwareProbed,
    LatencyMeasured,
    Payload,
)
from nearfree.log.evidence import Take
from nearfree.log.line import sequence_text
from nearfree.log.names import Layout, TakeName
from nearfree.log.seal import Seal
from nearfree.log.take import take_name
from nearfree.public.published import import_published

CONFIG = Path(__file__).parents[3] / "config"
TINY = Path(__file__).parents[2] / "configs" / "tiny"
SHEETS = Config(CONFIG).platforms
TOLERANCES = (0.05, 0.1, 0.2, 0.3)
GRID = (1, 2, 4, 8, 16, 32)
ROUNDS = 8
SHAPE: dict[str, Any] = {"backend": "torch", "d_model": 2048, "d_ff": 4608}
PROBE = ProbePlan(dtypes=("bfloat16", "float32"), guard_s=0.2, rounds=2)
MACHINE = Fingerprint(
    kind="cpu",
    model="Test CPU",
    features=("avx2",),
    cores=4,
    caches={"l1d": 32 * 1024, "l2": 8 * 1024**2},
)


def make_probed(*, peak: float = 80.0, bandwidth: float = 10.0, **changes: Any) -> HardwareProbed:
    """Return a probe's event: float32 peak in GFLOP/s, bandwidth in GB/s."""
    dtypes = {"bfloat16": peak / 4, "float32": peak}
    methods = {"stream": bandwidth, "gemm": bandwidth / 2}
    fields: dict[str, Any] = {
        "fingerprint": MACHINE,
        "compute": tuple(
            ComputePeak(dtype=name, gflop_s=rate, size=64, samples=(rate,), guarded=False)
            for name, rate in dtypes.items()
        ),
        "bandwidth": tuple(
            BandwidthPeak(method=name, gb_s=rate, bytes_read=4096, samples=(rate,))  # type: ignore[arg-type]
            for name, rate in methods.items()
        ),
        "threads": 1,
        "load_1m": 0.5,
    }
    return HardwareProbed(**(fields | changes))


def write_probe(layout: Layout, scope: str = "cpu", take: int = 1, **changes: Any) -> Seal:
    """Seal a probe."""
    return write_payloads(
        layout, take_name(scope, "hardware", take, PROBE), PROBE, make_probed(**changes)
    )


def knee(batch: int) -> dict[int, float]:
    """Return a curve in microseconds that is constant up to eight tokens and then rises."""
    return {n: 1000.0 * max(1.0, batch * n / 8) for n in GRID}


def make_visits(
    setting: Setting,
    times: Mapping[int, float],
    *,
    rounds: int = ROUNDS,
    baseline: int = 1,
    **changes: Any,
) -> list[LatencyMeasured]:
    """Return the visits of a curve; rounds differ by up to a percent."""
    return [
        LatencyMeasured(
            **{
                "setting": setting,
                "n": n,
                "baseline": baseline,
                "round": number,
                "order": order,
                "wall_us": (us * (1 + 0.001 * (number * 7 % 10)), us * 1.02),
                "process_us": (us * 0.9, us * 0.9),
                "dirty": (False, number == 0 and order == 1),
                "cache": "cold",
                "protocol": Interleaved(rounds=rounds),
                "load_1m": 0.25 + number,
            }
            | changes
        )
        for number in range(rounds)
        for order, (n, us) in enumerate(times.items())
    ]


def study(batches: Iterable[int] = (1, 2), **shape: Any) -> MeasurePlan:
    """Return the plan of a dense study over some batch sizes."""
    sweeps = tuple(
        Sweep(setting=make_setting(**(SHAPE | shape | {"batch": batch})), positions=GRID)
        for batch in batches
    )
    return MeasurePlan(sweeps=sweeps, protocol=Interleaved(rounds=ROUNDS), environment="cpu")


def write_study(
    layout: Layout,
    scope: str = "cpu",
    take: int = 1,
    *,
    stream: str = "dense_ffn",
    batches: Iterable[int] = (1, 2),
    slower: float = 1.0,
    **shape: Any,
) -> Seal:
    """Seal a dense study; `slower` multiplies the latencies above the baseline."""
    plan = study(batches, **shape)
    visits = [
        visit
        for sweep in plan.sweeps
        for visit in make_visits(
            sweep.setting,
            {n: us * (slower if n > 1 else 1) for n, us in knee(sweep.setting.batch).items()},
        )
    ]
    return write_payloads(layout, take_name(scope, stream, take, plan), plan, *visits)


def write_public(layout: Layout) -> Seal:
    """Seal the paper's values."""
    return import_published(layout, CONFIG / "published")


def config_at(tolerances: tuple[float, ...]) -> Config:
    """Return the shipped config with other tolerances."""
    config = Config(CONFIG)
    config.site = structs.replace(config.site, tolerances=tolerances)
    return config


def few_deployments() -> Config:
    """Return the shipped config with one small deployment, since all take seconds."""
    config = Config(CONFIG)
    config.deployments = read_entries(TINY / "deployments.yaml", DeploymentSpec)
    return config


def make_tables(
    layout: Layout,
    scope: str,
    tolerances: tuple[float, ...] = TOLERANCES,
    *,
    deployed: Config | None = None,
) -> None:
    """Run every stage of a scope's tables, by default with few deployments."""
    config = deployed or few_deployments()
    config.site = structs.replace(config.site, tolerances=tolerances)
    for stage in STAGES.values():
        if stage.tables and stage.has(scope):
            make(layout, config, Job(stage.name, scope))


def copy_config(folder: Path) -> Path:
    """Copy the shipped config with few platforms and without requested takes."""
    shutil.copytree(
        CONFIG, folder, ignore=shutil.ignore_patterns("takes.yaml", "sources.yaml", "schema")
    )
    path = folder / "platforms.yaml"
    blocks = re.split(r"\n(?=\w+:\n)", path.read_text())
    assert len(blocks) > 10
    path.write_text("\n".join(blocks[:8]))
    shutil.copy(TINY / "deployments.yaml", folder)
    return folder


def make_take(
    *payloads: Payload, scope: str = "cpu", take: int = 1, time: str = CLOCK, plan8: str = "0" * 8
) -> Take:
    """Return a take that is not on disk."""
    name = TakeName(scope, "dense_ffn", take, plan8)
    plan = study()
    seal = Seal(
        scope=scope, stream="dense_ffn", take=take, plan_digest=plan8, outcome="complete",
        segments=(),
    )  # fmt: skip
    events = [
        Event(
            specversion="1.0",
            id=str(number),
            source=name.segment(1),
            time=time,
            datacontenttype="application/json",
            data=data,
            sequence=sequence_text(number),
            prevhash="",
            hash="",
        )
        for number, data in enumerate((make_started(plan), *payloads), start=1)
    ]
    return Take(name, seal, tuple(events))


def make_results(layout: Layout, published: Layout, *, takes: int = 2) -> Layout:
    """Copy the paper's values and tables, and add a probe and some takes of a study."""
    shutil.copytree(published.root, layout.root)
    write_probe(layout)
    for take in range(1, takes + 1):
        write_study(layout, "cpu", take, slower=1.1 if take > 1 else 1.0)
    make_tables(layout, "cpu")
    return layout
