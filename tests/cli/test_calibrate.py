"""`nearfree calibrate`: what it prints, that it may be repeated, and what it refuses."""

import re
from pathlib import Path

import pytest
from derive.work_model.imported import STREAM, along_n, put_curves
from msgspec.structs import replace
from nearfree.log.names import Layout
from public.test_curves import put

from cli.conftest import Call


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for releases in the log alone."""
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "cache"))


def test_constants_of_every_family(project: Path, call: Call) -> None:
    """Each constant is printed with unit and meaning; again, the same text and the same log."""
    put_curves(Layout(project / "results"))
    code, out, err = call("calibrate", "--stream", STREAM, "--offline")
    assert (code, err) == (0, "")
    assert out.startswith("public/constants/1-")
    for text in (
        "gemm, 8 curves: 16-bit products with weights of 64 MB or more",
        "attention_cached, 6 curves: 16-bit attention of one position",
        "tile_128     bandwidth_share",
        "half width of ln T(N)/T(baseline)",
        "what a call costs besides",
    ):
        assert text in out
    assert call("verify")[0] == 0
    log = {path: path.read_bytes() for path in project.rglob("*.jsonl")}
    assert call("calibrate", "--stream", STREAM, "--offline") == (code, out, err)
    assert {path: path.read_bytes() for path in project.rglob("*.jsonl")} == log


def test_platforms_by_their_aliases_and_once(project: Path, call: Call) -> None:
    """An alias means its platform, and a platform named twice counts once."""
    put(Layout(project / "results"), STREAM, *along_n("gemm"))
    answer = call("calibrate", "--stream", STREAM, "--on", "h100,h100_sxm,h100")
    assert answer[0] == 0
    assert "gemm, 4 curves" in answer[1]
    assert call("calibrate", "--stream", STREAM, "--on", "h100") == answer


def test_kernels_have_constants_and_an_accuracy_by_regime(project: Path, call: Call) -> None:
    """Each regime has its band and how often it was right; a second call prints the same text."""
    slower = (
        replace(curve, latency_us=tuple(2.0 * t_us for t_us in curve.latency_us))
        for curve in along_n("gemm")
    )
    put(Layout(project / "results"), STREAM, *slower)
    code, out, err = call("calibrate", "--kernels", "--stream", STREAM, "--offline")
    assert (code, err) == (0, "")
    assert out.startswith("public/kernels/1-")
    assert re.search(
        r"\n    R1  gemm bfloat16 +[\d.]+ +8 curves  hit [01]\.\d{3}  within x2 [01]\.\d{3}", out
    )
    assert call("calibrate", "--kernels", "--stream", STREAM, "--offline") == (code, out, err)


@pytest.mark.parametrize(
    ("argv", "thing"),
    [
        ("--on mars", "mars"),
        ("--on h20", "there is no curve of h20. Choose from a100, h100"),
        ("--on ,", "name at least one platform"),
        ("--stream nowhere", "the log holds no imported curves of nowhere"),
        ("", "the log holds no imported curves of aiconfigurator_core_0_12_0"),
        ("--own h20 --from published --collectives", "and --collectives are separate calibrations"),
        ("--kernels --steps", "--kernels and --steps are separate calibrations"),
        ("--kernels --on a100", "--on has no effect with --kernels"),
        ("--steps", "--stream has no effect with --steps"),
    ],
)
def test_mistakes(project: Path, call: Call, argv: str, thing: str) -> None:
    """Each mistake ends with exit code 2, names the thing and a remedy, and seals nothing."""
    layout = Layout(project / "results")
    put(layout, STREAM, *along_n("gemm"))
    if "--stream" not in argv and argv:
        argv += f" --stream {STREAM}"
    before = layout.takes()
    code, out, err = call("calibrate", *argv.split())
    assert (code, out) == (2, "")
    assert thing in err
    assert layout.takes() == before
