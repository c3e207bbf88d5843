"""Foretelling: what is predicted of a model's study is put on record, and told in a line each."""

import re
from pathlib import Path
from typing import Any

import pytest
from derive.tables.logs import write_probe
from nearfree.hardware.identity import cpu_fingerprint
from nearfree.log.names import Layout
from whole_models import DENSE, MOE, study_document, write_config

from cli.conftest import Call
from cli.test_mistakes import everything, one_message

MODULE: dict[str, Any] = {
    "module": "dense_ffn",
    "backend": "torch",
    "platforms": ["cpu"],
    "shape": {"d_model": 64, "d_ff": 128},
    "positions": [1, 2],
    "protocol": {"name": "interleaved"},
}
WAYS = (
    "modules_sum",
    "modules_minimum",
    "principle_counted (probed_stream)",
    "principle_counted (probed_gemm)",
)
LINE = re.compile(r"  (L = .*?): ([a-z_]+(?: \([a-z_]+\))?): (.*)")
VALUE = re.compile(r"([\d.]+) \[([\d.]+), ([\d.]+)\], (.+)")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder that studies two small models and a module on this machine."""
    routed = study_document(MOE, model=MOE, routing=["skewed", "router"], context=[8])
    small = study_document(positions=[1, 2], context=[8])
    write_config(tmp_path, DENSE, MOE, small=small, routed=routed, dense=MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nearfree.hardware.clocks.CpuClock.check", lambda _self, _us: None)
    return tmp_path


@pytest.fixture
def probed(models: Path) -> Path:
    """Stand in the same folder, where this machine was probed."""
    write_probe(Layout(models / "results"), fingerprint=cpu_fingerprint())
    return models


def told(out: str) -> list[tuple[str, str, str]]:
    """Return where, by whom and what was said, a line each."""
    found = [LINE.fullmatch(line) for line in out.splitlines()[1:]]
    assert all(found)
    return [(each[1], each[2], each[3]) for each in found if each]


def test_each_setting_has_its_predictions(probed: Path, call: Call) -> None:
    """After its modules were measured a setting has a line a way: N_max, interval and limiter."""
    assert call("measure", "cpu", "small_modules")[0] == 0
    code, out, err = call("foretell", "cpu", "small")
    assert (code, err) == (0, "")
    assert re.match(r"cpu/small_foretold/1-[0-9a-f]{8}: sealed, 22 events in 1 attempt", out)
    lines = told(out)
    assert [(where, way) for where, way, _ in lines] == [("L = 8, b = 1", way) for way in WAYS]
    for _, _, value in lines:
        found = VALUE.fullmatch(value)
        assert found
        n_max, low, high = map(float, found.groups()[:3])
        assert 1 <= low <= n_max <= high


def test_experts_are_told_by_routing_and_k(probed: Path, call: Call) -> None:
    """A setting with experts says how tokens fall on them; what is refused says why."""
    assert call("measure", "cpu", "routed_modules")[0] == 0
    lines = told(call("foretell", "cpu", "routed")[1])
    assert [where for where, _, _ in lines] == [
        f"L = 8, b = 1, {routing}, k = 4" for routing in ("skewed", "router") for _ in WAYS
    ]
    values = [value for _, _, value in lines]
    assert all(VALUE.fullmatch(value) for value in values[:4])
    assert all(value.startswith("the model's own router decides") for value in values[4:])


def test_without_modules_nothing_is_written(probed: Path, call: Call) -> None:
    """Before its modules were measured the command ends with one message, and may be repeated."""
    before = everything(probed / "results")
    one_message(
        call("foretell", "cpu", "small"), "qkv projection of small was not measured in isolation"
    )
    assert everything(probed / "results") == before
    assert call("measure", "cpu", "small_modules")[0] == 0
    assert call("foretell", "cpu", "small")[0] == 0


def test_foretelling_again_tells_the_same(probed: Path, call: Call) -> None:
    """A second call writes nothing, and prints what the first did, by either name of the stream."""
    assert call("measure", "cpu", "small_modules")[0] == 0
    first = call("foretell", "cpu", "small")
    assert first[0] == 0
    before = everything(probed / "results")
    assert call("foretell", "cpu", "small_foretold") == first
    assert everything(probed / "results") == before


def test_another_take_is_made_when_asked(probed: Path, call: Call) -> None:
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
def test_what_is_no_models_study_is_refused(
    probed: Path, call: Call, line: str, thing: str
) -> None:
    """A study of a module, and what is none, ends with one message, and nothing is written."""
    before = everything(probed)
    one_message(call(*line.split()), thing)
    assert everything(probed) == before


def test_nothing_is_foretold_before_a_probe(models: Path, call: Call) -> None:
    """Without the platform's facts the command ends with one message, and writes nothing."""
    one_message(call("foretell", "cpu", "small"), "no probe of cpu")
    assert not (models / "results").exists()
