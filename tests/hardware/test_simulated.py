"""Curve files: their checks, and the simulated machine that they describe."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import MsgspecError, json
from msgspec.structs import replace
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.simulated import Curve, CurveFile, read_curves, read_machine
from nearfree.log.line import sha256
from simulated_machine import (
    EXPERTS,
    FFN,
    GRID,
    MODEL,
    REFUSED,
    make_file,
    make_machine,
    write_file,
)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A curve file survives the disk, and its digest is that of its bytes."""
    path = write_file(tmp_path / "h20.json")
    machine = read_machine(path, "h20")
    assert machine.file == make_file()
    assert machine.digest == sha256(path.read_bytes()) == sha256(read_curves(path, "h20"))


def test_the_machine_is_named_as_simulated() -> None:
    """The fingerprint has the datasheet's facts, and a kind and a model that no real one has."""
    fingerprint = make_machine().fingerprint
    assert (fingerprint.kind, fingerprint.model) == ("simulated", "NVIDIA H20 (simulated)")
    assert (fingerprint.cores, fingerprint.caches, fingerprint.features) == (
        78,
        {"l2": 60 * 1024**2},
        ("sm_90",),
    )


def test_the_file_of_another_platform_is_refused(tmp_path: Path) -> None:
    """A curve file is of one platform alone."""
    with pytest.raises(ConfigError, match="is for h20, not for a800"):
        read_machine(write_file(tmp_path / "a800.json"), "a800")


def test_a_missing_file_says_how_to_write_it(tmp_path: Path) -> None:
    """Without the file the message names the command that makes it."""
    with pytest.raises(ConfigError, match="cannot be read") as error:
        read_machine(tmp_path / "h20.json", "h20")
    assert "nearfree predict --curves FOLDER --platform h20" in error.value.remedy


@given(st.binary(max_size=200) | st.just(b"[" * 100_000))
def test_no_bytes_make_it_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    """Any bytes are a curve file or one ConfigError."""
    path = tmp_path_factory.mktemp("raw") / "h20.json"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match="is no curve file"):
        read_machine(path, "h20")


@pytest.mark.parametrize(
    "changes",
    [
        {"n": (2, 1)},
        {"n": (1, 1)},
        {"n": (0, 1)},
        {"n": ()},
        {"latency_us": (1.0,)},
        {"latency_us": (1.0, 0.0)},
        {"latency_us": (1.0, -1.0)},
        {"latency_us": (1.0, 1e300)},
        {"block_rows": (16,)},
        {"rows_per_position": (1, 1, 1)},
    ],
)
def test_an_invalid_curve_is_refused(changes: dict[str, Any]) -> None:
    """N must rise from 1, with one positive, finite time each."""
    right = {"setting": {"module": "gemm", "backend": "torch", "dtype": "bfloat16"},
             "n": (1, 2), "latency_us": (1.0, 1.0)}  # fmt: skip
    assert json.decode(json.encode(right), type=Curve).n == (1, 2)
    with pytest.raises(MsgspecError):
        json.decode(json.encode(right | changes), type=Curve)


def test_a_field_too_many_is_refused(tmp_path: Path) -> None:
    """An unknown field is refused, not ignored."""
    path = write_file(tmp_path / "h20.json")
    path.write_bytes(path.read_bytes().replace(b'{"form":1', b'{"extra":1,"form":1', 1))
    with pytest.raises(ConfigError, match="extra"):
        read_machine(path, "h20")


def test_a_model_is_its_modules_as_often_as_they_run() -> None:
    """The parts of a forward are the curves of its modules with their counts."""
    machine = make_machine()
    assert [(count, curve.setting) for count, curve in machine.parts(MODEL)] == [
        (1, FFN),
        (3, EXPERTS),
    ]
    assert [(count, curve.setting) for count, curve in machine.parts(FFN)] == [(1, FFN)]


def test_a_refused_setting_says_why() -> None:
    """A refused setting gives the predictor's reason, an unknown one a message of its own."""
    machine = make_machine()
    with pytest.raises(EvidenceError, match="no rules are read"):
        machine.parts(REFUSED)
    with pytest.raises(EvidenceError, match="does not hold it"):
        machine.parts(replace(FFN, batch=7))


def test_an_n_that_is_not_there_is_not_guessed() -> None:
    """An N that is not in the curve is refused, not interpolated."""
    machine = make_machine()
    ((_, curve),) = machine.parts(FFN)
    assert machine.at(curve, GRID[1]) == curve.latency_us[1]
    with pytest.raises(EvidenceError, match="lacks N=3"):
        machine.at(curve, 3)


def test_auto_is_the_files_dtype() -> None:
    """A study that leaves the dtype open gets that of the curves."""
    machine = make_machine()
    assert machine.resolved(replace(FFN, dtype="auto")) == FFN
    assert machine.resolved(replace(FFN, dtype="float16")).dtype == "float16"


def test_the_form_of_files_is_pinned() -> None:
    """The fields of a curve file are fixed, so that old files stay readable."""
    assert CurveFile.__struct_fields__ == (
        *("form", "platform", "device", "dtype", "features", "cores", "cache_bytes"),
        *("peak_tflops", "bandwidth_gb_s", "predictor", "code", "releases", "calibrations"),
        *("curves", "forwards", "refused"),
    )
