"""`nearfree foretell`: predictions of a model's study are recorded, and printed a line each."""

import re
from pathlib import Path
from typing import Any

import pytest
from derive.tables.logs import write_probe
from nearfree.hardware.identity import cpu_fingerprint
from nearfree.log.names import Layout
from whole_models import DENSE, MOE, study_document, write_config

from cli.conftest import Call
from cli.test_mistakes import folder_content, one_message

MODULE: dict[str, Any] = {
    "module": "dense_ffn",
    "backend": "torch",
    "platforms": ["cpu"],
    "shape": {"d_model": 64, "d_ff": 128},
    "positions": [1, 2],
    "protocol": {"name": "interleaved"},
}
PREDICTORS = (
    "modules_sum",
    "modules_minimum",
    "principle_counted (probed_stream)",
    "principle_counted (probed_gemm)",
)
LINE = re.compile(r"  (L = .*?): ([a-z_]+(?: \([a-z_]+\))?): (.*)")
VALUE = re.compile(r"([\d.]+) \[([\d.]+), ([\d.]+)\], (.+)")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that studies two small models and a module on this machine."""
    routed = study_document(MOE, model=MOE, routing=["skewed", "router"], context=[8])
    small = study_document(positions=[1, 2], context=[8])
    write_config(tmp_path, DENSE, MOE, small=small, routed=routed, dense=MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nearfree.hardware.clocks.CpuClock.check", lambda _self, _us: None)
    return tmp_path


@pytest.fixture
def probed(models: Path) -> Path:
    """Change to the same folder with a probe of this machine."""
    write_probe(Layout(models / "results"), fingerprint=cpu_fingerprint())
    return models


def prediction_lines(out: str) -> list[tuple[str, str, str]]:
    """Return setting, predictor and prediction of each line."""
    matches = [LINE.fullmatch(line) for line in out.splitlines()[1:]]
    assert all(matches)
    return [(match[1], match[2], match[3]) for match in matches if match]


def test_each_setting_has_its_predictions(probed: Path, call: Call) -> None:
    """A setting whose modules were measured has a line for each predictor: N_max and interval."""
    assert call("measure", "cpu", "small_modules")[0] == 0
    code, out, err = call("foretell", "cpu", "small")
    assert (code, err) == (0, "")
    assert re.match(r"cpu/small_foretold/1-[0-9a-f]{8}: sealed, 22 events in 1 attempt", out)
    lines = prediction_lines(out)
    assert [(where, predictor) for where, predictor, _ in lines] == [
        ("L = 8, b = 1", predictor) for predictor in PREDICTORS
    ]
    for _, _, value in lines:
        match = VALUE.fullmatch(value)
        assert match
        n_max, lowest, highest = map(float, match.groups()[:3])
        assert 1 <= lowest <= n_max <= highest


def test_predictions_of_experts_have_routing_and_k(probed: Path, call: Call) -> None:
    """A setting with experts names its routing; a refusal has its reason."""
    assert call("measure", "cpu", "routed_modules")[0] == 0
    lines = prediction_lines(call("foretell", "cpu", "routed")[1])
    assert [where for where, _, _ in lines] == [
        f"L = 8, b = 1, {routing}, k = 4" for routing in ("skewed", "router") for _ in PREDICTORS
    ]
    values = [value for _, _, value in lines]
    assert all(VALUE.fullmatch(value) for value in values[:4])
    assert all(value.startswith("the model's own router decides") for value in values[4:])


def test_without_modules_nothing_is_written(probed: Path, call: Call) -> None:
    """Before its modules were measured the command ends with one message, and may be repeated."""
    before = folder_content(probed / "results")
    one_message(
        call("foretell", "cpu", "small"), "qkv projection of small was not measured in isolation"
    )
    assert folder_content(probed / "results") == before
    assert call("measure", "cpu", "small_modules")[0] == 0
    assert call("foretell", "cpu", "small")[0] == 0


def test_a_second_call_prints_the_same(probed: Path, call: Call) -> None:
    """A second call writes nothing, and prints the same by either name of the stream."""
    assert call("measure", "cpu", "small_modules")[0] == 0
    answer = call("foretell", "cpu", "small")
    assert answer[0] == 0
    before = folder_content(probed / "results")
    assert call("foretell", "cpu", "small_foretold") == answer
    assert folder_content(probed / "results") == before


def test_another_take_is_made_on_request(probed: Path, call: Call) -> None:
    """A take is the one that is named, or the one that the config asks for."""
    assert call("measure", "cpu", "small_modules")[0] == 0
    assert call("foretell", "cpu", "small", "--take", "2")[1].startswith("cpu/small_foretold/2-")
    (probed / "config" / "takes.yaml").write_text("cpu: {small_foretold: 3}\n")
    assert call("foretell", "cpu", "small")[1].startswith("cpu/small_foretold/3-")


@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("foretell cpu dense", "cpu has no stream 'dense_foretold' of predictions"),
        ("foretell cpu mars", "cpu has no stream 'mars_foretold'"),
        ("foretell cpu small_modules", "cpu has no stream 'small_modules_foretold'"),
        ("foretell h20 small", "h20 is not this machine"),
        ("foretell mars small", "'mars'"),
    ],
)
def test_a_study_of_no_model_is_refused(probed: Path, call: Call, line: str, thing: str) -> None:
    """A study of a module, or an unknown one, is refused in one message; nothing is written."""
    before = folder_content(probed)
    one_message(call(*line.split()), thing)
    assert folder_content(probed) == before


def test_nothing_is_foretold_before_a_probe(models: Path, call: Call) -> None:
    """Without the platform's facts the command ends with one message, and writes nothing."""
    one_message(call("foretell", "cpu", "small"), "no probe of cpu")
    assert not (models / "results").exists()
