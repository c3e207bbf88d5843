"""Commands: their effect, their output, and their repetition."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import read_sealed
from derive.reference.kept import kept_on_two, write_kept
from msgspec import json
from nearfree.core.plan import MeasurePlan, ProbePlan
from nearfree.hardware import probe
from nearfree.log.names import Layout
from nearfree.log.seal import read_seal

from cli.conftest import Call

SMALL = (
    "dense_ffn:\n  module: dense_ffn\n  backend: torch\n  platforms: [cpu]\n"
    "  shape: {d_model: 512, d_ff: 1024}\n  batch: [1, 2]\n  positions: [1, 2, 4]\n"
    "  dtype: float32\n  protocol: {name: interleaved, rounds: 3, forwards: 2}\n"
)


@pytest.fixture
def small(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the study and the probe of the project small enough to take no time."""
    (project / "config" / "studies.yaml").write_text(SMALL)
    monkeypatch.setattr(probe, "_SIZES", {"cpu": (16, 32)})
    monkeypatch.setattr(probe, "_STREAM_BYTES", {"cpu": 4096})
    monkeypatch.setattr(probe, "_GEMM_WIDTHS", {"cpu": (32, 64)})
    monkeypatch.setattr(
        "nearfree.config.plans.Plans.probe",
        lambda *_: ProbePlan(dtypes=("bfloat16", "float32"), guard_s=0.2, rounds=2),
    )
    return project


@pytest.mark.slow
def test_from_a_probe_to_a_report(small: Path, call: Call) -> None:
    """The commands of the workflow, one after the other, end in a report and a clean log."""
    root = ["--results", "fresh"]
    assert "phi" in call("probe", "cpu", *root)[1]
    assert "sealed, 26 events in 1 attempt(s)" in call("measure", "cpu", "dense_ffn", *root)[1]
    assert "sealed, 330 events" in call("import", "published", *root)[1]
    for scope in ("cpu", "public"):
        for stage in ("project", "boundaries", "predictions", "validation"):
            assert call("tables", stage, scope, *root) == (0, "", "")
    for stage in ("outlook", "schedules", "kernels"):
        assert call("tables", stage, "public", *root) == (0, "", "")
    for stage in ("engine_steps", "tuning"):
        assert call("tables", stage, "cpu", *root) == (0, "", "")
    for scope in ("cpu", "public"):
        assert call("tables", "claims", scope, *root) == (0, "", "")
        assert call("figures", scope, *root) == (0, "", "")
    assert call("report", *root) == (0, "fresh/report/index.html\n", "")
    assert call("ledger", *root)[1].startswith("ledger 1: 3 seals, root ")
    code, out, err = call("verify", *root)
    assert (code, err) == (0, "")
    assert out.startswith("fresh: 3 sealed takes, ")
    assert out.endswith("37 tables; 0 damaged, 0 notices\n")


def test_measuring_twice_is_one_measurement(small: Path, call: Call) -> None:
    """A command whose take is sealed answers the same and writes nothing."""
    root = ["--results", "fresh"]
    for line in (["probe", "cpu"], ["measure", "cpu", "dense_ffn"], ["import", "published"]):
        first_answer = call(*line, *root)
        before = sorted(Path("fresh").rglob("*"))
        assert call(*line, *root) == first_answer
        assert sorted(Path("fresh").rglob("*")) == before


def test_measure_reads_a_plan_from_a_pipe(
    small: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `plan` prints is what `measure --plan -` takes, without reading the config."""
    call("probe", "cpu", "--results", "fresh")
    plan = call("plan", "cpu", "dense_ffn")[1]
    assert json.decode(plan, type=MeasurePlan).points_a_round == 6
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(plan.encode())))
    code, out, _ = call(
        "measure", "cpu", "dense_ffn", "--plan", "-", "--results", "fresh", "--config", "nowhere"
    )
    assert (code, out.startswith("cpu/dense_ffn/1-")) == (0, True)
    with_config = call("measure", "cpu", "dense_ffn", "--results", "fresh")[1]
    assert with_config == out


def test_a_retake_asks_for_the_next_take(small: Path, call: Call) -> None:
    """After a retake the same command measures the next take."""
    call("probe", "cpu", "--results", "fresh")
    code, out, _ = call("retake", "cpu", "--results", "fresh")
    assert (code, out.splitlines()) == (
        0,
        [
            "cpu/dense_ffn: take 2",
            "Now run: snakemake --cores all cpu",
            "On a cluster: snakemake --profile slurm cpu",
        ],
    )
    assert call("measure", "cpu", "dense_ffn", "--results", "fresh")[1].startswith(
        "cpu/dense_ffn/2-"
    )
    assert "take 3" in call("retake", "cpu", "dense_ffn", "--results", "fresh")[1]


def test_the_log_is_shown_by_scope_take_and_event(project: Path, call: Call) -> None:
    """The log is shown in full, by scope, by take and by event."""
    takes = Layout(Path("results")).takes()
    assert [line.split()[0] for line in call("log", "show")[1].splitlines()] == [*map(str, takes)]
    assert len(call("log", "show", "public")[1].splitlines()) == 1
    code, _, err = call("log", "show", "mars")
    assert (code, "no takes in mars. There are takes in cpu, public" in err) == (2, True)
    out = call("log", "show", str(takes[0]))[1]
    assert "nearfree.latency.measured.v1" in out
    event = json.decode(call("log", "show", f"{takes[0]}.1#2")[1])
    assert event["type"] == "nearfree.latency.measured.v1"


@pytest.mark.parametrize("line", ["verify", "log show", "log recover", "ledger"])
def test_the_results_may_be_named_last(project: Path, call: Call, line: str) -> None:
    """Every command takes `--results` at its end, where the others take it."""
    Path("results").rename("elsewhere")
    code, out, err = call(*line.split(), "--results", "elsewhere")
    assert (code, err) == (0, "")
    assert out


def test_a_retraction_is_on_record(project: Path, call: Call) -> None:
    """A retracted event stays in the log, with a mark, and a new take says why."""
    layout = Layout(Path("results"))
    take = layout.takes("cpu")[0]
    code, out, _ = call("log", "retract", f"{take}.1#2", "--reason", "a backup ran")
    assert (code, out.endswith(f"retracts {take}.1#2\n")) == (0, True)
    assert f"{take}.1#2" in call("log", "show", str(take))[1]
    (marked,) = [x for x in call("log", "show", str(take))[1].splitlines() if "RETRACTED" in x]
    assert marked.startswith(f"{take}.1#2 ")
    (retraction,) = [t for t in layout.takes("cpu") if t.stream == "retracted"]
    events = read_sealed(layout, read_seal(layout, retraction))
    assert events[1].data.reason == "a backup ran"


def test_without_interrupted_takes_the_list_is_empty(project: Path, call: Call) -> None:
    """Without interrupted takes the list says so."""
    assert call("log", "recover") == (0, "no interrupted takes\n", "")


def test_damage_is_an_exit_code(project: Path, call: Call) -> None:
    """Damage is listed by file and ends with code 2; a notice ends with code 0."""
    layout = Layout(Path("results"))
    path = layout.segment(layout.takes("cpu")[0], 1)
    with path.open("ab") as file:
        file.write(b"late")
    code, out, err = call("verify")
    assert (code, err) == (0, "")
    assert out.startswith(f"notice: {path} 4 bytes after its sealed part")
    path.write_bytes(b"x" + path.read_bytes()[1:])
    code, out, _ = call("verify", "results")
    assert (code, out.splitlines()[0].startswith("DAMAGE: results/")) == (2, True)
    assert "1 damaged" in out.splitlines()[-1]


def test_a_ledger_is_written_once_a_state(project: Path, call: Call) -> None:
    """The ledger grows only when something changed, and its receipt is a copy."""
    receipt = call("ledger")[1]
    assert call("ledger")[1] == receipt
    path = project / "config" / "config.yaml"
    path.write_text(path.read_text() + "# more\n")
    assert call("ledger")[1].startswith("ledger 2: 3 seals")
    newest = project / "results" / "ledger" / "local" / "000002.json"
    assert (project / "results" / "state" / "ledger.json").read_bytes() == newest.read_bytes()


def test_adopted_takes_are_in_the_index(project: Path, call: Call) -> None:
    """Adoption puts a scope's takes and a ledger into git's index, once."""
    subprocess.run(["git", "init", "--quiet"], check=True)
    code, out, _ = call("adopt", "cpu", "dense_ffn")
    assert (code, out.splitlines()[-1]) == (0, "1 new take(s); commit to keep them")
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout
    assert "results/ledger/000001.json" in tracked
    assert sum(line.endswith((".jsonl", ".seal.json")) for line in tracked.splitlines()) == 2
    assert call("adopt", "cpu", "dense_ffn")[1] == "nothing new to adopt\n"


def test_takes_of_kernels_that_newer_ones_replace_are_retired(project: Path, call: Call) -> None:
    """Takes of kernels leave git and the log once a newer take has all that they hold.

    Takes that are still read, and those of other streams, are refused with the reason.
    """
    subprocess.run(["git", "init", "--quiet"], check=True)
    layout = Layout(Path("results"))
    old_kernel, new_kernel = kept_on_two()[:2]
    first_take = write_kept(layout, old_kernel, new_kernel).name
    second_take = write_kept(layout, old_kernel, take=2).name
    assert call("adopt", "public", "kernels")[0] == 0
    (other_take, *_) = layout.takes("cpu")
    for take, reason in ((first_take, "is still read"), (other_take, "is not a take of kernels")):
        code, _, err = call("retire", f"{take}")
        assert (code, f"{take} {reason}" in err) == (2, True)
    third_take = write_kept(layout, new_kernel, take=3).name
    assert call("adopt", "public", "kernels")[0] == 0
    code, out, _ = call("retire", f"{first_take}")
    assert (code, out.startswith(f"{first_take}: removed from the log")) == (0, True)
    assert layout.takes("public", "kernels") == [second_take, third_take]
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout
    assert str(first_take) not in tracked
    assert str(second_take) in tracked
    code, out, _ = call("verify")
    assert (code, "a later one retired it" in out) == (0, True)
