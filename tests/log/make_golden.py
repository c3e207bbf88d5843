"""Write the golden logs: `make_golden.py FOLDER`, once for each format that was released.

Files under golden/ are never rewritten: each later version must read them. golden_versions/ has a
take for each version of a type that has several, written when that version was new.
"""

import shutil
import sys
from pathlib import Path

from conftest import CLOCK, make_latency, make_plan, make_setting, make_started, write_payloads
from derive.reference.kept import kept_on_two
from msgspec import json
from nearfree.core.drafting import Drafting, Steps
from nearfree.core.plan import (
    CalibratePlan,
    DecodePlan,
    ImportPlan,
    Plan,
    ProbePlan,
    PromptPart,
    RetractPlan,
    plan_digest,
)
from nearfree.core.weights import WeightsFile
from nearfree.log.document import write_once
from nearfree.log.events import (
    BandsCalibrated,
    BandwidthPeak,
    BoundaryPublished,
    CalibratedConstant,
    ComputePeak,
    ConstantsCalibrated,
    DecodeMeasured,
    Fingerprint,
    HardwareProbed,
    ObservationRetracted,
    Payload,
    RegimeBand,
    RulePublished,
    RunFailed,
    RunFinished,
    SegmentRecovered,
)
from nearfree.log.evidence import read_take
from nearfree.log.ledger import Ledger, current_seals, seals_root
from nearfree.log.line import GENESIS
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal, seal_segment, write_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name
from nearfree.measure.rounds import whole_rounds

MEASURE = make_plan(positions=(1, 4), rounds=3)
PROBE = ProbePlan(dtypes=("float32",))
IMPORT = ImportPlan(files={"table_1.yaml": "0" * 64})


def write_attempt(layout: Layout, name: TakeName, attempt: int, *payloads: Payload) -> Path:
    """Write one attempt under the fixed clock."""
    with SegmentWriter(layout, name, attempt, now=lambda: CLOCK) as writer:
        for payload in payloads:
            writer.append(payload)
    return writer.path


def write_interrupted(layout: Layout, plan: Plan, name: TakeName, *attempts: list[Payload]) -> None:
    """Write a take of two attempts, the first of them torn, and seal it."""
    first = write_attempt(layout, name, 1, make_started(plan), *attempts[0])
    with first.open("ab") as file:
        file.write(b'{"specversion":"1.0","type":"nearfree.lat')
    torn = read_segment(first, name.segment(1))
    part = seal_segment(first, torn, 1, whole_rounds(torn, plan))
    recovered = SegmentRecovered(
        segment=torn.name,
        kept_events=part.events,
        kept_bytes=part.bytes,
        ignored_bytes=torn.size - part.bytes,
        head=part.head,
        torn=True,
    )
    finished = RunFinished(outcome="complete", wall_s=1.5, timed_s=0.25)
    start = make_started(plan, 2)
    second = write_attempt(layout, name, 2, start, recovered, *attempts[1], finished)
    first_attempt = read_segment(second, name.segment(2))
    seal = Seal(
        scope=name.scope,
        stream=name.stream,
        take=name.take,
        plan_digest=plan_digest(plan),
        outcome="complete",
        segments=(part, seal_segment(second, first_attempt, 2, len(first_attempt.events))),
    )
    write_seal(layout, seal)


def write_log(layout: Layout) -> None:
    """Write takes that hold every event type, and a ledger over them."""
    points: list[Payload] = [make_latency(number, n) for number in range(3) for n in (1, 4)]
    dense = take_name("cpu", "dense", 1, MEASURE)
    write_interrupted(layout, MEASURE, dense, points[:3], points[2:])
    probed = HardwareProbed(
        fingerprint=Fingerprint(
            kind="cpu", model="Example CPU", features=("avx2",), cores=4, caches={"L2": 1048576}
        ),
        compute=(
            ComputePeak(
                dtype="float32", gflop_s=95.5, size=512, samples=(95.5, 90.0), guarded=False
            ),
        ),
        bandwidth=(BandwidthPeak(method="stream", gb_s=11.25, bytes_read=4096, samples=(11.25,)),),
        threads=1,
        load_1m=0.5,
    )
    failed = RunFailed(error="the probe was disturbed", remedy="Run it again")
    hardware = take_name("cpu", "hardware", 1, PROBE)
    write_interrupted(layout, PROBE, hardware, [failed], [probed])
    target = f"{dense.segment(2)}#3"
    retraction = RetractPlan(target=target, reason="a golden mistake")
    write_payloads(
        layout,
        take_name("cpu", "retracted", 1, retraction),
        retraction,
        ObservationRetracted(target=target, reason=retraction.reason),
    )
    boundary = BoundaryPublished(
        source="paper",
        table="1",
        row="dense",
        column="b=1",
        quantity="n_max",
        setting=make_setting(),
        n_max=64.0,
        platform="h20",
        epsilon=0.2,
        grid=(1, 16, 64),
    )
    rule = RulePublished(
        source="paper",
        table="2",
        row=1,
        package="vllm",
        versions="0.9",
        path="triton",
        condition="M <= 16",
        value=16,
    )
    write_payloads(layout, take_name("public", "paper", 1, IMPORT), IMPORT, boundary, rule)
    seals = current_seals(layout)
    ledger = Ledger(
        number=1,
        time=CLOCK,
        previous=GENESIS,
        root=seals_root(seals),
        seals=seals,
        config={"config.yaml": "here: [cpu]\n"},
        code_digest="0123456789abcdef",
        libraries={"polars": "0.0.0"},
    )
    write_once(layout.ledgers / "000001.json", ledger)


def write_constants(layout: Layout, take: int) -> None:
    """Write a take of constants, in the version that is the newest."""
    plan = CalibratePlan(source="curves", files={}, platforms=("h20",), epsilon=0.2, form=1)
    constant = CalibratedConstant(
        hypothesis="tile_16", name="launch_us", unit="us", meaning="the floor", value=4.5
    )
    calibrated = ConstantsCalibrated(
        family="gemm",
        dtypes=("bfloat16",),
        constants=(constant,),
        band=0.125,
        epsilon=0.2,
        platforms=("h20",),
        selection="16-bit products",
        curves=1,
        rows_sha256="0" * 64,
        files={"curves.parquet": "1" * 64},
        members={"gemm.parquet": "2" * 64},
        tried=("a line (taken)",),
    )
    write_payloads(layout, take_name("public", "constants", take, plan), plan, calibrated)


def write_bands(layout: Layout, take: int) -> None:
    """Write a take of bands, in the version that is the newest."""
    plan = CalibratePlan(source="curves", files={}, platforms=("h20",), epsilon=0.2, form=1)
    band = RegimeBand(
        regime="R0", module="gemm", formats="bfloat16", routing="", band=0.125, curves=8
    )
    calibrated = BandsCalibrated(epsilon=0.2, covered=0.8, bands=(band,))
    write_payloads(layout, take_name("public", "kernels", take, plan), plan, calibrated)


def write_packed(layout: Layout, take: int) -> None:
    """Write a take of one kernel with its curves, in the version that is the newest."""
    plan = CalibratePlan(source="curves", files={}, platforms=("h20",), epsilon=0.2, form=1)
    (kernel, *_) = kept_on_two()
    write_payloads(layout, take_name("public", "packed", take, plan), plan, kernel)


def write_decodes(layout: Layout, take: int) -> None:
    """Write a take of one decode, in the version that is the newest."""
    weights = WeightsFile(file_type="q8_0", sha256="1" * 64)
    part = PromptPart(sha256="2" * 64, kind="own", held_out=True)
    drafting = Drafting(drafter="ngram_simple", k=4, ngram_max=2, ngram_min=2)
    plan = DecodePlan(
        engine="llama_cpp",
        release="1.2.3",
        model="tiny",
        weights=weights,
        environment="base",
        prompts=(part,),
        limit=8,
        positions=64,
        rows=5,
        runs=(drafting,),
    )
    decoded = DecodeMeasured(
        engine=plan.engine,
        release=plan.release,
        model=plan.model,
        weights_sha256=weights.sha256,
        drafting=drafting,
        loop="own loop",
        batch=1,
        exact=True,
        prompt_sha256=part.sha256,
        kind=part.kind,
        held_out=part.held_out,
        repeat=0,
        order=0,
        limit=plan.limit,
        prompt_tokens=16,
        output_tokens=8,
        output_sha256="3" * 64,
        same_tokens=8,
        steps=Steps(rows=(5, 3), accepted=(4, 1)),
        wall_s=0.5,
        process_s=0.25,
    )
    write_payloads(layout, take_name("public", "decodes", take, plan), plan, decoded)


def content(layout: Layout) -> dict[str, list[object]]:
    """Return the content of a log as plain JSON values, take by take."""
    takes = {str(name): read_take(layout, name).events for name in layout.takes()}
    return {name: json.decode(json.encode(events)) for name, events in takes.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    root = Layout(folder / "log")
    write_log(root)
    shutil.rmtree(root.state)
    decoded = json.format(json.encode(content(root)), indent=1)
    (folder / "expected.json").write_bytes(decoded + b"\n")
