"""`nearfree predict --curves`, and how `probe` and `measure` use its files."""

from pathlib import Path

import pytest
from msgspec import json
from nearfree.hardware.simulated import read_machine
from nearfree.log.events import LatencyMeasured
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from simulated_machine import make_file, write_file

from cli import test_mistakes
from cli.conftest import Answer, Call

pytestmark = pytest.mark.slow

SITE = """here: [h20]
curves: curves
epsilon: 0.2
tolerances: [0.2]
"""
STUDY = """ffn: {module: dense_ffn, backend: torch, platforms: [h20], batch: [1],
      shape: {d_model: 64, d_ff: 128}, positions: [1, 2, 4, 8, 9, 16, 32],
      protocol: {name: interleaved, rounds: 3}}
"""


def one_message(answer: Answer, *things: str) -> None:
    """Check that a command ended with one message that names each thing."""
    for thing in things:
        test_mistakes.one_message(answer, thing)


UNRULED = """sdpa: {module: attention, backend: torch_sdpa, platforms: [h20], context: [256],
      shape: {heads: 8, kv_heads: 8, head_dim: 128}, positions: [1, 2],
      protocol: {name: interleaved}}
"""


@pytest.fixture
def site(project: Path) -> Path:
    """Change to a project with a simulated h20, its curve file, and an empty results root."""
    (project / "config" / "config.yaml").write_text(SITE)
    (project / "config" / "studies.yaml").write_text(STUDY)
    curve = json.decode(json.encode(make_file().curves[0]))
    curve["setting"] |= {"backend": "torch"}
    write_file(project / "curves" / "h20.json")
    document = json.decode((project / "curves" / "h20.json").read_bytes())
    document["curves"] = [curve]
    document.pop("forwards")
    (project / "curves" / "h20.json").write_bytes(json.encode(document))
    return project


@pytest.mark.usefixtures("recorded")
def test_each_platform_has_a_curve_file(call: Call, tmp_path: Path) -> None:
    """Each platform's file holds the site's studies; aliases mean the platform."""
    code, out, err = call(
        "predict", "--curves", str(tmp_path), "--platform", "nvidia_h20,a800,h800",
        "--config", "simulated/config",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        *("a800.json", "h20.json", "h800.json")
    ]
    machines = [
        read_machine(tmp_path / f"{platform}.json", platform)
        for platform in ("h20", "a800", "h800")
    ]
    curves = machines[0].file.curves
    assert f"{tmp_path}/h20.json: NVIDIA H20, T(N) of {len(curves)} modules" in out
    assert not any(machine.file.refused for machine in machines)


@pytest.mark.usefixtures("recorded")
def test_a_refused_study_is_printed(call: Call, tmp_path: Path) -> None:
    """A study that cannot be predicted is named with its reason, and the file is written."""
    folder = tmp_path / "config"
    folder.mkdir()
    for name in ("platforms.yaml", "sources.yaml", "models"):
        (folder / name).symlink_to(Path("config", name).resolve())
    (folder / "config.yaml").write_text(SITE)
    (folder / "studies.yaml").write_text(UNRULED)
    code, out, _ = call("predict", "--curves", str(tmp_path / "made"), "--config", str(folder))
    assert code == 0
    assert "refused: attention on torch_sdpa, 1 settings: no rules of the attention" in out
    assert (tmp_path / "made" / "h20.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "qwen3_8b"),
        ("--batch", "8"),
        ("--epsilon", "0.1"),
        ("--dense", "torch"),
        ("--all",),
        ("--largest", "8"),
        ("--ignore-memory",),
    ],
)
def test_an_option_without_effect_on_curves_is_refused(
    call: Call, project: Path, arguments: tuple[str, ...]
) -> None:
    """Settings come from the studies: another argument is a mistake, not ignored."""
    answer = call("predict", "--curves", str(project / "made"), "--platform", "h20", *arguments)
    one_message(answer, f"{arguments[0]} has no effect with --curves", "or --curves")
    assert not (project / "made").exists()


@pytest.mark.parametrize("missing", ["model", "platform"])
def test_without_curves_model_and_platform_are_required(
    call: Call, project: Path, missing: str
) -> None:
    """Without --curves both a model and a platform are required."""
    options = {"model": "qwen3_8b", "platform": "h20"}
    options.pop(missing)
    ((name, value),) = options.items()
    answer = call("predict", f"--{name}", value)
    one_message(answer, f"--{missing} is missing", "Name one")
    assert ("platforms: cpu, h20, " in answer[2]) == (missing == "platform")
    assert project.exists()


def test_a_simulated_platform_is_probed_and_measured(call: Call, site: Path) -> None:
    """Both commands take the curve file from the config, and need no device."""
    code, out, err = call("probe", "h20", "--results", "simulated")
    assert (code, err) == (0, "")
    assert "NVIDIA H20 (simulated)" in out
    code, out, _ = call("measure", "h20", "ffn", "--results", "simulated")
    assert code == 0
    assert "h20/ffn/1-" in out
    takes = read_scope(Layout(site / "simulated"), "h20", stream="ffn")
    assert {event.data.timer for event in takes[0].events_of(LatencyMeasured)} == {"simulated"}


def test_a_piped_plan_takes_its_curve_file_by_option(call: Call, site: Path) -> None:
    """What `plan` prints runs with --curves FILE alone, on that very file, without config."""
    assert call("probe", "h20", "--results", "simulated")[0] == 0
    (site / "plan.json").write_text(call("plan", "h20", "ffn")[1])
    (site / "config" / "config.yaml").unlink()
    piped = ("measure", "h20", "ffn", "--results", "simulated", "--plan", "plan.json")
    one_message(call(*piped), "is of a simulated machine", "--curves")
    path = site / "curves" / "h20.json"
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    one_message(call(*piped, "--curves", str(path)), "is of another curve file", "nearfree plan")
    path.write_bytes(content)
    assert call(*piped, "--curves", str(path))[0] == 0


def test_a_root_with_real_takes_is_refused(call: Call, site: Path) -> None:
    """The project's own results hold a real probe: nothing simulated goes there."""
    before = sorted((site / "results").rglob("*"))
    answer = call("probe", "h20")
    one_message(answer, "holds measured takes of cpu: what is simulated stays apart", "--results")
    assert sorted((site / "results").rglob("*")) == before


def test_a_plan_without_its_curve_file_is_refused(call: Call, site: Path) -> None:
    """A config that names a folder without the platform's file says how to write it."""
    (site / "curves" / "h20.json").unlink()
    for command in (("probe", "h20"), ("plan", "h20", "ffn"), ("measure", "h20", "ffn")):
        one_message(call(*command), "curves/h20.json cannot be read", "nearfree predict --curves")
