"""`nearfree validate --curves`: a file's curves are answered as `predict` answers, by regime."""

from pathlib import Path

import pytest
from derive.truth.test_datasets import HEADER
from msgspec import json

from cli.conftest import Call

POINTS = ((1, 32.0), (2, 40.0), (4, 55.0), (8, 80.0), (16, 110.0), (32, 140.0), (64, 300.0))
"""N and T(N) in microseconds: no curve of a real kernel."""


def curves(path: Path, *releases: str, d_ff: int = 768) -> str:
    """Write a layer of experts on an H200, by SGLang's kernel, for each release."""
    rows = [
        f"h200,moe_ffn,sglang,{release},bfloat16,1,,2048,{d_ff},true,128,8,balanced,,,,"
        f"sglang_fused_moe_triton,{n},{us}"
        for release in releases
        for n, us in POINTS
    ]
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return str(path)


def scored(call: Call, *argv: str) -> list[dict[str, object]]:
    """Return the work model's groups."""
    more = ("--predictor", "work_model", "--offline", "--format", "json")
    code, out, err = call("validate", *argv, *more)
    assert (code, err) == (0, "")
    groups: list[dict[str, object]] = json.decode(out)
    return groups


@pytest.mark.usefixtures("recorded")
def test_a_files_curves_are_answered_from_the_record(call: Call, tmp_path: Path) -> None:
    """A shape that another release was measured with is R3, a new one R2; groups name it."""
    path = curves(tmp_path / "known.csv", "0.5.23")
    (group,) = scored(call, "--curves", path)
    assert group["regime"] == "R3"
    (group,) = scored(call, "--curves", curves(tmp_path / "new.csv", "0.5.23", d_ff=832))
    assert group["regime"] == "R2"
    (unseen,) = scored(call, "--curves", path, "--unseen", "--by", "predictor,regime")
    assert unseen["regime"] == "R0"


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(("release", "count"), [("0.5.14", 1), ("0.5.23", 0)])
def test_curves_of_recorded_releases_are_counted(
    call: Call, tmp_path: Path, release: str, count: int
) -> None:
    """Curves of a release and shape on record are counted: they are no test of a prediction."""
    path = curves(tmp_path / "mine.csv", release)
    code, out, err = call("validate", "--curves", path, "--offline")
    assert (code, err) == (0, "")
    assert "answers     as `predict` gives them" in out
    assert f"on record   {count} curves" in out
