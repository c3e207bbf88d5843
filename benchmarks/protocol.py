"""The adaptive protocol beside the paper's: the same settings, the same N offered to both.

Both measure this machine, one after the other, with the same two copies of weights or keys. Where
T is smooth, one N more or less is noise; a boundary that jumps must be the same.
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
    """What a take found, and what it took."""

    row: dict[str, object]
    forwards: int
    wall_s: float
    outside: float


def cost(take: Take) -> Cost:
    """Return a take's boundary, its forwards, warm-up included, and its seconds."""
    latency = LATENCY.build(
        LATENCY.frame(latency_rows(curves([take]))), {event.event_id for event in take.events}
    )
    (row,) = measured_rows(latency, [EPSILON])
    visits = [event.data for event in take.of(LatencyMeasured)]
    warm = sum(
        v.protocol.warmup * len(v.wall_us) // v.protocol.forwards
        for v in visits
        if not isinstance(v.protocol, Paper)
    )
    warm += sum(v.protocol.warmup for v in visits if isinstance(v.protocol, Paper) and v.round == 0)
    end = take.of(RunFinished)[-1].data
    return Cost(
        row=row,
        forwards=warm + sum(len(v.wall_us) for v in visits) + 2 * len(take.of(WorkCounted)),
        wall_s=end.wall_s,
        outside=1 - (end.timed_s or 0.0) / end.wall_s,
    )


def main() -> None:
    """Measure every setting by both protocols, and print what they found and took."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        probe(layout, "cpu", "cpu", 1, Plans(Config(CONFIG), "cpu").probe())
        total: dict[str, list[float]] = {each.name: [0.0, 0.0] for each in PROTOCOLS}
        for name, sweep in SWEEPS.items():
            for protocol in PROTOCOLS:
                plan = MeasurePlan(sweeps=(sweep,), protocol=protocol, environment="cpu")
                measure(layout, "cpu", f"{name}_{protocol.name}", 1, plan)
                (take,) = read_scope(layout, "cpu", stream=f"{name}_{protocol.name}")
                found = cost(take)
                total[protocol.name][0] += found.forwards
                total[protocol.name][1] += found.wall_s
                print(
                    f"{name}, {protocol.name}: N_max {found.row['n_max']} "
                    f"({found.row['n_low']} to {found.row['n_high']}, {found.row['verdict']}), "
                    f"{found.forwards} forwards, {found.wall_s:.1f} s, "
                    f"{found.outside:.1%} outside of forwards"
                )
        quick, paper = (total[each.name] for each in PROTOCOLS)
        print(
            f"1/{paper[0] / quick[0]:.0f} of the forwards, 1/{paper[1] / quick[1]:.0f} of the time"
        )


if __name__ == "__main__":
    main()
