"""The probe of a simulated machine: what its datasheet says, and nothing that was timed."""

from nearfree.core.plan import ProbePlan
from nearfree.errors import ConfigError
from nearfree.hardware.identity import STREAM, check_identity
from nearfree.hardware.simulated import Machine
from nearfree.log.events import BandwidthPeak, ComputePeak, HardwareProbed
from nearfree.log.names import Layout
from nearfree.log.run import describe_run
from nearfree.log.seal import Seal
from nearfree.log.simulated import refuse_mixed
from nearfree.log.take import OpenTake, ensure_take, take_name
from nearfree.units import GFLOP_PER_TFLOP


def simulate_probe(
    layout: Layout, scope: str, take: int, plan: ProbePlan, machine: Machine
) -> Seal:
    """Make sure that a simulated platform's probe is sealed: phi and beta of its datasheet.

    Raises
    ------
    ConfigError
        The plan was made with another curve file.
    HardwareError
        The datasheet is another than that of the machine on record.
    EvidenceError
        The root holds what was really measured.
    """
    if plan.curves != machine.digest:
        raise ConfigError(
            f"the probe of {scope} is of another curve file", remedy="Probe it once more"
        )
    refuse_mixed(layout, as_simulated=True)
    check_identity(layout, scope, machine.fingerprint)
    facts = machine.file

    def work(take: OpenTake) -> None:
        take.append(
            HardwareProbed(
                fingerprint=machine.fingerprint,
                compute=tuple(
                    ComputePeak(
                        dtype=dtype,
                        gflop_s=facts.peak_tflops[dtype] * GFLOP_PER_TFLOP,
                        size=0,
                        samples=(),
                        guarded=False,
                    )
                    for dtype in plan.dtypes
                    if dtype in facts.peak_tflops
                ),
                bandwidth=(
                    BandwidthPeak(
                        method="stream", gb_s=facts.bandwidth_gb_s, bytes_read=0, samples=()
                    ),
                ),
                threads=1,
            )
        )

    return ensure_take(
        layout,
        take_name(scope, STREAM, take, plan),
        plan,
        lambda attempt: describe_run(
            f"nearfree probe {scope}", plan, attempt, device=machine.fingerprint.model
        ),
        work,
    )
