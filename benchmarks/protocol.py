"""Compare the adaptive protocol with the paper's, on the same settings and grids of N.

Both measure this machine, one after the other, with the same two copies of weights or keys. If T is
smooth, a difference of one N is noise; if T jumps, both boundaries must be the same.
"""

import tempfile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.core.plan import MeasurePlan, Sweep
from nearfree.core.protocols import Adaptive, Paper, Timing
from nearfree.core.setting import Setting
from nearfree.derive.tables.boundaries import measured_rows
from nearfree.derive.tables.latency import LATENCY, latency_rows
from nearfree.hardware.probe import probe
from nearfree.log.curves import curves
from nearfree.log.events import LatencyMeasured, RunFinished, WorkCounted
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout
from nearfree.measure.run import measure

CONFIG = Path(__file__).parents[1] / "config"
EPSILON = 0.2
DENSE = Setting(module="dense_ffn", backend="torch", dtype="auto", d_model=2048, d_ff=4608)
ATTENTION = Setting(
    module="attention", backend="torch_sdpa", dtype="auto", context=1024, heads=8, kv_heads=8,
    head_dim=128,
)  # fmt: skip
MOE = Setting(
    module="moe_ffn", backend="torch_padded", dtype="auto", d_model=1024, d_ff=1024, experts=16,
    top_k=2, routing="skewed",
)  # fmt: skip
SWEEPS = {
    "dense_ffn_b1": Sweep(setting=DENSE, positions=(1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 16)),
    "dense_ffn_b2": Sweep(setting=replace(DENSE, batch=2), positions=(1, 2, 3, 4, 5, 6, 8)),
    "attention": Sweep(
        setting=ATTENTION, positions=(1, 2, 4, 8, 16, 24, 32, 33, 40, 48, 64, 65, 80)
    ),
    "moe_ffn": Sweep(setting=MOE, positions=(1, 2, 4, 8, 12, 16, 17, 24, 32)),
}
PROTOCOLS: tuple[Timing, ...] = (Adaptive(), Paper(weight_copies=2))


class Cost(Struct, frozen=True):
    """A take's boundary and its cost; `overhead` is the share of time outside forwards."""

    row: dict[str, object]
    forwards: int
    wall_s: float
    overhead: float


def cost(take: Take) -> Cost:
    """Return a take's boundary, its number of forwards including warm-up, and its seconds."""
    latency = LATENCY.build(
        LATENCY.frame(latency_rows(curves([take]))), {event.event_id for event in take.events}
    )
    (row,) = measured_rows(latency, [EPSILON])
    visits = [event.data for event in take.events_of(LatencyMeasured)]
    warm_up = sum(
        visit.protocol.warmup * len(visit.wall_us) // visit.protocol.forwards
        for visit in visits
        if not isinstance(visit.protocol, Paper)
    )
    warm_up += sum(
        visit.protocol.warmup
        for visit in visits
        if isinstance(visit.protocol, Paper) and visit.round == 0
    )
    timed = sum(len(visit.wall_us) for visit in visits)
    end = take.events_of(RunFinished)[-1].data
    return Cost(
        row=row,
        forwards=warm_up + timed + 2 * len(take.events_of(WorkCounted)),
        wall_s=end.wall_s,
        overhead=1 - (end.timed_s or 0.0) / end.wall_s,
    )


def main() -> None:
    """Measure every setting by both protocols, and print boundaries and costs."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        probe(layout, "cpu", "cpu", 1, Plans(Config(CONFIG), "cpu").probe())
        totals: dict[str, list[float]] = {protocol.name: [0.0, 0.0] for protocol in PROTOCOLS}
        for name, sweep in SWEEPS.items():
            for protocol in PROTOCOLS:
                plan = MeasurePlan(sweeps=(sweep,), protocol=protocol, environment="cpu")
                measure(layout, "cpu", f"{name}_{protocol.name}", 1, plan)
                (take,) = read_scope(layout, "cpu", stream=f"{name}_{protocol.name}")
                result = cost(take)
                totals[protocol.name][0] += result.forwards
                totals[protocol.name][1] += result.wall_s
                print(
                    f"{name}, {protocol.name}: N_max {result.row['n_max']} "
                    f"({result.row['n_low']} to {result.row['n_high']}, {result.row['verdict']}), "
                    f"{result.forwards} forwards, {result.wall_s:.1f} s, "
                    f"{result.overhead:.1%} outside of forwards"
                )
        quick, paper = (totals[protocol.name] for protocol in PROTOCOLS)
        print(
            f"1/{paper[0] / quick[0]:.0f} of the forwards, 1/{paper[1] / quick[1]:.0f} of the time"
        )


if __name__ == "__main__":
    main()
