"""Nsight Compute: the command, and reading reports in the format of real ones."""

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import make_setting, read_sealed, write_payloads
from derive.tables.logs import write_probe
from msgspec import json
from msgspec.structs import replace
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.plan import ProfilePlan, Sweep
from nearfree.errors import EvidenceError, HardwareError
from nearfree.hardware import identity
from nearfree.log.events import Fingerprint, KernelProfiled, RunStarted
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.measure.nsight import (
    counters,
    find_ncu,
    ncu_command,
    payloads,
    profile,
    record,
    run_ncu,
)
from torch.autograd import profiler_legacy

SETTING = make_setting(backend="torch", dtype="bfloat16")
PLAN = ProfilePlan(sweeps=(Sweep(setting=SETTING, positions=(1, 16)),), environment="cpu")
FIRST = ("ID", "Process ID", "Process Name", "Host Name")
RANGES = tuple(
    f"{kind}:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    for kind in ("thread Domain:Push/Pop_Range", "Id:Domain:Start/Stop_Range")
)
LAUNCH = ("Context", "Stream", "Block Size", "Grid Size", "Device", "CC", "device__attribute_chip")
TIME, READ, WRITTEN, DRAM_BUSY, TENSOR_BUSY, TENSOR, *VECTOR = counters(SETTING)
FADD, FMUL, FFMA, HADD, HMUL, HFMA = VECTOR
UNITS = {TIME: "ns", READ: "byte", WRITTEN: "byte", DRAM_BUSY: "%", TENSOR_BUSY: "%"}
UNITS |= dict.fromkeys(VECTOR, "inst")
GEMM = 'void gemm<(int)128, "a">(T1::Params, float *)'
"""A kernel's name may hold what CSV has to quote."""
Kernel = tuple[int, str, dict[str, str]]
SEEN = {
    TIME: "2,000.00", READ: "3,000.00", WRITTEN: "1,000.00", DRAM_BUSY: "50.00",
    TENSOR_BUSY: "10.00", TENSOR: "4,096.00",
} | dict.fromkeys(VECTOR, "0.00")  # fmt: skip
KERNELS: list[Kernel] = [(1, GEMM, {}), (16, GEMM, {}), (16, "add", {TIME: "6,000.00"})]


def in_range(n: int) -> str:
    """Return how a kernel's ranges are written, one that a backend opens inside of ours."""
    names = (f"nearfree n={n}", "theirs")
    return "77  " + "  ".join(f'"<default domain>:{name}' + ":none" * 6 + '"' for name in names)


def report(
    kernels: list[Kernel] = KERNELS,
    *,
    units: dict[str, str] | None = None,
    leave_out: tuple[str, ...] = (),
) -> str:
    """Return a report: lines of `ncu` itself around a header, units and a row for each kernel."""
    seen = [name for name in counters(SETTING) if name not in leave_out]
    names = [*FIRST, *RANGES, "Kernel Name", *LAUNCH, *seen]
    out = io.StringIO()
    rows = csv.DictWriter(out, names, quoting=csv.QUOTE_ALL, lineterminator="\n", restval="")
    rows.writeheader()
    rows.writerow({name: unit for name, unit in (UNITS | (units or {})).items() if name in seen})
    for number, (n, kernel, changed) in enumerate(kernels):
        values = {name: value for name, value in (SEEN | changed).items() if name in seen}
        rows.writerow(
            {"ID": number, RANGES[0]: in_range(n), "Kernel Name": kernel, "CC": "9.0"} | values
        )
    return f"==PROF== Connected to process 77\n{out.getvalue()}==PROF== Disconnected\n"


def read(text: str, plan: ProfilePlan = PLAN) -> list[KernelProfiled]:
    """Return the counters that a report has for a plan."""
    return payloads(text, plan, "Nsight Compute 0")


def test_kernels_are_summed_over_each_n() -> None:
    """Time, FLOP and bytes add up over a forward's kernels; each kernel is named once."""
    one, sixteen = read(report([*KERNELS, (16, "add", {})]))
    assert (one.n, one.kernels, one.kernel_us) == (1, (GEMM,), 2.0)
    assert (one.flop, one.dram_bytes) == (4096, 4000)
    assert (sixteen.n, sixteen.kernels, sixteen.kernel_us) == (16, (GEMM, "add"), 10.0)
    assert (sixteen.flop, sixteen.dram_bytes) == (3 * 4096, 3 * 4000)
    assert {(p.setting, p.profiler) for p in (one, sixteen)} == {(SETTING, "Nsight Compute 0")}


def test_sums_are_those_of_one_forward() -> None:
    """Where several forwards were profiled, each sum is divided by their number."""
    (one, _), (two, _) = (read(report(), replace(PLAN, forwards=f)) for f in (1, 2))
    assert (two.forwards, two.kernel_us) == (2, one.kernel_us / 2)
    assert (two.flop, two.dram_bytes) == (4096 / 2, 4000 / 2)
    assert two.dram_utilization == one.dram_utilization


@pytest.mark.parametrize(
    ("counter", "flop"), [(FADD, 1), (FMUL, 1), (FFMA, 2), (HADD, 2), (HMUL, 2), (HFMA, 4)]
)
def test_instructions_count_by_their_flop(counter: str, flop: int) -> None:
    """A fused multiply-add is two FLOP, and an instruction on halves works on two at a time."""
    one = read(report([(1, GEMM, {counter: "1,000.00"}), (16, GEMM, {})]))[0]
    assert one.flop == 4096 + 1000 * flop


def test_a_recorded_product_has_the_flop_of_its_shape() -> None:
    """A recorded bfloat16 product of 8192 cubed gives 2 MNK, and one scaling of its output."""
    recorded = {TENSOR: "1,099,511,627,776.00", FMUL: "67,108,864.00", TIME: "10,209,984.00"}
    one = read(report([(1, GEMM, recorded), (16, GEMM, {})]))[0]
    assert one.flop == 2 * 8192**3 + 8192**2
    assert one.kernel_us == 10209.984


def test_utilisations_are_weighted_by_time() -> None:
    """A long kernel weighs more than a short one; the figures are shares, not percentages."""
    long = {TIME: "6,000.00", TENSOR_BUSY: "90.00", DRAM_BUSY: "10.00"}
    sixteen = read(report([*KERNELS[:2], (16, "add", long)]))[1]
    assert sixteen.tensor_utilization == pytest.approx((2 * 0.1 + 6 * 0.9) / 8)
    assert sixteen.dram_utilization == pytest.approx((2 * 0.5 + 6 * 0.1) / 8)


@pytest.mark.parametrize(
    ("unit", "time"),
    [
        ("nsecond", "2,000"),
        ("us", "2.00"),
        ("usecond", "2.00"),
        ("ms", "0.002"),
        ("msecond", "2e-03"),
        ("s", "0.000002"),
        ("second", "2e-06"),
    ],
)
def test_times_come_in_any_unit(unit: str, time: str) -> None:
    """Kernel times are microseconds, whichever unit the row of units names for them."""
    kernels = [(n, kernel, {TIME: time}) for n, kernel, _ in KERNELS[:2]]
    assert [p.kernel_us for p in read(report(kernels, units={TIME: unit}))] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("unit", "size"),
    [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("Tbyte", 1e12)],
)
def test_bytes_come_in_any_unit(unit: str, size: float) -> None:
    """DRAM traffic is bytes, whichever unit the row of units names; prefixes are decimal."""
    kernels = [(n, kernel, {READ: "1,234.50", WRITTEN: "0.00"}) for n, kernel, _ in KERNELS[:2]]
    one = read(report(kernels, units={READ: unit}))[0]
    assert one.dram_bytes == pytest.approx(1234.5 * size)


@pytest.mark.parametrize(
    ("counter", "field"),
    [
        (TENSOR, "flop"),
        (HFMA, "flop"),
        (READ, "dram_bytes"),
        (TENSOR_BUSY, "tensor_utilization"),
        (DRAM_BUSY, "dram_utilization"),
    ],
)
@pytest.mark.parametrize("how", ["column", "(!) n/a", "n/a", "no data", ""])
def test_a_missing_counter_is_none(counter: str, field: str, how: str) -> None:
    """A counter that one kernel lacks leaves its figure open, and every other one as it was."""
    kernels = [*KERNELS[:2], (16, "add", {TIME: "6,000.00", counter: how})]
    text = report(leave_out=(counter,)) if how == "column" else report(kernels)
    tensor, sixteen = read(report())[1], read(text)[1]
    assert getattr(tensor, field) is not None
    assert sixteen == replace(tensor, **{field: None})


BAD = {
    "nothing": "",
    "no CSV": "==ERROR== The application returned an error code (1).\n",
    "no kernel": report([]),
    "no kernel of an N": report(KERNELS[:1]),
    "no units": "\n".join(line for line in report().split("\n") if "ns" not in line),
    "an unknown unit": report(units={TIME: "cycle"}),
    "bytes as times": report(units={READ: "ns"}),
    "text as a number": report([(1, GEMM, {TIME: "fast"}), *KERNELS[1:]]),
    "a negative number": report([(1, GEMM, {READ: "-1.00"}), *KERNELS[1:]]),
    "an endless number": report([(1, GEMM, {READ: "inf"}), *KERNELS[1:]]),
    "no number": report([(1, GEMM, {READ: "nan"}), *KERNELS[1:]]),
    "no time": report([(1, GEMM, {TIME: "n/a"}), *KERNELS[1:]]),
    "no times": report(leave_out=(TIME,)),
    "a cut row": report()[: report().rindex(',"')],
    "an open quote": report()[: report().rindex('"')],
    "no ranges": report().replace("Push/Pop", "Other"),
    "no names": report().replace("Kernel Name", "Name"),
    "a kernel outside": report().replace("nearfree n=16", "theirs"),
    "another program's range": report().replace("nearfree n=16", "nearfree n=16x"),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_another_form_is_refused(text: str) -> None:
    """A damaged report, or one in another format, is refused with a remedy."""
    with pytest.raises(EvidenceError, match="the report of ncu has") as caught:
        read(text)
    assert "profile again" in caught.value.remedy


@pytest.mark.parametrize(
    ("dtype", "tensor"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float8", "fp8")]
)
def test_the_command_counts_the_tensor_operations_of_the_dtype(dtype: str, tensor: str) -> None:
    """`ncu` gets only the tensor counter of the setting's dtype, and each counter once."""
    command = ncu_command("ncu", replace(SETTING, dtype=dtype), Path("r"), ["program"])
    metrics = command[command.index("--metrics") + 1].split(",")
    assert [name for name in metrics if "_path_tensor_" in name] == [
        name for name in metrics if f"src_{tensor}" in name
    ]
    assert len(set(metrics)) == len(metrics) == len(counters(SETTING))


def test_the_command_is_a_list_that_ends_with_the_program() -> None:
    """No shell reads the command: a path with blanks stays one argument, and nothing is cut."""
    program = ["a python", "-m", "nearfree"]
    command = ncu_command("/a b/ncu", SETTING, Path("a b", "r.csv"), program)
    assert command[0] == "/a b/ncu"
    assert command[-5:] == ["--log-file", str(Path("a b", "r.csv")), *program]
    assert command[command.index("--profile-from-start") + 1] == "off"


def test_forwards_run_inside_their_marks() -> None:
    """Each N is marked once, in order, and its mark holds the requested number of forwards."""
    seen: list[tuple[int, int]] = []

    @contextmanager
    def mark(n: int) -> Iterator[None]:
        with profiler_legacy.profile() as inside:
            yield
        products = [event for event in inside.function_events if event.name == "aten::mm"]
        seen.append((n, len(products) // 2))

    setting = replace(SETTING, dtype="float32")
    profile(setting, (1, 4), ExecutionContext(), 3, mark=mark)
    assert seen == [(1, 3), (4, 3)]


def stand_in(folder: Path, body: str) -> str:
    """Write a program that is called as `ncu` is; it gets the report's path and the last word."""
    path = folder / "ncu"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
        "report = Path(sys.argv[sys.argv.index('--log-file') + 1])\nlast = sys.argv[-1]\n" + body
    )
    path.chmod(0o755)
    return str(path)


def test_the_program_inside_gets_the_plan(tmp_path: Path) -> None:
    """The last word of the command is a file with the plan, and the report's text comes back."""
    ncu = stand_in(
        tmp_path, "report.write_text(' '.join(sys.argv[-5:-1]) + Path(last).read_text())"
    )
    text = run_ncu(ncu, PLAN, ("profile", "h200", "dense"))
    assert text.startswith("nearfree profile h200 dense")
    assert json.decode(text.partition("dense")[2], type=ProfilePlan) == PLAN


@pytest.mark.parametrize(
    "body",
    [
        "report.write_text('==PROF== Connected\\n==ERROR== ERR_NVGPUCTRPERM: why\\n')",
        "report.write_text('==ERROR== ERR_NVGPUCTRPERM: why\\n')\nsys.exit(1)",
        "sys.exit('other words\\nnearfree: error: why')",
    ],
)
def test_what_ncu_says_is_told(tmp_path: Path, body: str) -> None:
    """An error of `ncu`, or of the profiled program, is quoted in the message."""
    with pytest.raises(HardwareError, match=r"ncu failed with \d: .*: why") as caught:
        run_ncu(stand_in(tmp_path, body), PLAN, ("profile", "h200", "dense"))
    assert "performance counters" in caught.value.remedy


def test_silence_is_told_too(tmp_path: Path) -> None:
    """Where `ncu` fails without output, the message says so."""
    with pytest.raises(HardwareError, match="it does not say why"):
        run_ncu(stand_in(tmp_path, "sys.exit(9)"), PLAN, ("profile", "h200", "dense"))


def test_ncu_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's version is recorded; without a profiler, the message says where to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HardwareError, match="not on the PATH") as caught:
        find_ncu()
    assert "CUDA toolkit" in caught.value.remedy
    version_text = "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.1.1.0 (build 1)"
    (tmp_path / "ncu").write_text(f"#!{sys.executable}\nprint({version_text!r})\n")
    (tmp_path / "ncu").chmod(0o755)
    assert find_ncu() == (str(tmp_path / "ncu"), "Nsight Compute 2025.1.1.0")


def test_a_sealed_profile_returns_at_once(layout: Layout) -> None:
    """A profile is a take of its own stream; a sealed one needs neither `ncu` nor a GPU."""
    name = take_name("h200", "dense_profile", 1, PLAN)
    seal = write_payloads(layout, name, PLAN, *read(report()))
    assert record(layout, "h200", "dense", 1, PLAN).segments == seal.segments


def test_a_profile_is_a_take_of_its_own(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `ncu` reports is sealed beside the latencies; an attempt that failed is made again."""
    gpu = Fingerprint(kind="cuda", model="Test GPU", features=(), cores=132, caches={"l2": 1})
    write_probe(layout, "h200", fingerprint=gpu)
    monkeypatch.setattr(identity, "machine_fingerprint", lambda _: gpu)
    monkeypatch.setenv("PATH", str(tmp_path))
    auto = replace(PLAN.sweeps[0], setting=replace(SETTING, dtype="auto"))
    plan = replace(PLAN, sweeps=(auto,))
    stand_in(tmp_path, "sys.exit('why')")
    with pytest.raises(HardwareError, match="why"):
        record(layout, "h200", "dense", 1, plan)
    check = "assert sys.argv[-5:-1] == ['profile', 'h200', 'dense', '--inside']\n"
    stand_in(tmp_path, f"{check}report.write_text({report()!r})")
    seal = record(layout, "h200", "dense", 1, plan)
    assert (seal.stream, len(seal.segments)) == ("dense_profile", 2)
    events = [event.data for event in read_sealed(layout, seal)]
    started = [event for event in events if isinstance(event, RunStarted)]
    assert [event.command for event in started] == 2 * [
        "nearfree profile h200 dense --take 1 --forwards 1"
    ]
    seen = [event for event in events if isinstance(event, KernelProfiled)]
    assert [(event.n, event.setting) for event in seen] == [(1, SETTING), (16, SETTING)]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_only_a_gpu_that_is_here_is_profiled(layout: Layout, kind: str) -> None:
    """A CPU platform, and a GPU platform on a machine without it, are refused."""
    known = Fingerprint(kind=kind, model="x", features=(), cores=1, caches={})  # type: ignore[arg-type]
    write_probe(layout, "here", fingerprint=known)
    with pytest.raises(HardwareError, match="is no GPU" if kind == "cpu" else "NVIDIA GPU|not the"):
        record(layout, "here", "dense", 1, PLAN)
    assert [take.stream for take in layout.takes("here", sealed=False)] == []
