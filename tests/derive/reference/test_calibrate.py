"""Calibration of kernels: from imported curves to a sealed take, and what is refused."""

import pytest
from nearfree.core.scopes import PUBLIC
from nearfree.core.setting import Setting
from nearfree.derive.reference.build import groups_of
from nearfree.derive.reference.calibrate import calibrate_kernels
from nearfree.derive.reference.folds import COVERED, Fold, band_of, needed_shifts, predictions_of
from nearfree.derive.reference.record import STREAM as KERNELS
from nearfree.derive.reference.record import RecordedReference, recorded_reference
from nearfree.errors import EvidenceError
from nearfree.log.events import BandsCalibrated, KernelReferenced
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.public.curves import read_curves
from public.test_curves import curve, put

from derive.curves import SHEETS
from derive.reference.made import (
    CHIPS,
    EPSILON,
    HEADS,
    by_form,
    curves,
    events,
    noisy,
)

STREAM = "ours"
MODELS = [
    {**HEADS, "heads": heads, "kv_heads": 8, "platform": platform}
    for platform in ("h100", "h200", "a100")
    for heads in (8, 16, 24, 32, 40, 48, 56, 64)
]
QUESTIONS = [*MODELS, *({**model, "backend_version": "2.0"} for model in MODELS[:5])]
WITHOUT: dict[str, Fold] = {"R0": "R0", "R1": "R1", "R2": "R2m", "R3": "R3"}
"""What is left out for the band of each regime."""
OURS = curves(*QUESTIONS, bent=noisy(9, 0.3))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let releases be looked up in the log alone."""
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path_factory.mktemp("cache")))


def calibrated(layout: Layout, stream: str = STREAM, epsilon: float = EPSILON) -> Seal:
    """Calibrate without the network."""
    return calibrate_kernels(layout, SHEETS, stream=stream, epsilon=epsilon, offline=True)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a log with attention on three GPUs, and the message about each kernel."""
    layout = Layout(tmp_path_factory.mktemp("kernels") / "results")
    put(layout, STREAM, *events(OURS))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NEARFREE_CACHE", str(layout.root.parent / "cache"))
        calibrated(layout)
    return layout


def read(layout: Layout) -> RecordedReference:
    """Return the kernels in the log."""
    reference = recorded_reference(layout, CHIPS)
    assert reference is not None
    return reference


def test_every_kernel_is_sealed(log: Layout) -> None:
    """Each kernel of a platform has its group with all its curves and files."""
    known = read(log)
    heights = {key.platform: item.curves.height for key, item in known.reference.groups.items()}
    assert heights == {"h100": 13, "h200": 8, "a100": 8}
    for key, event in known.events.items():
        data: KernelReferenced = event.data
        releases = {row["backend_version"] for row in QUESTIONS if row["platform"] == key.platform}
        assert set(data.members) == {f"{key.platform}/{release}" for release in releases}
        assert set(data.members.values()) == {"0" * 64}
        assert (data.source, data.epsilon) == ("somebody", EPSILON)


def test_what_is_sealed_is_what_the_curves_say(log: Layout) -> None:
    """The sealed constants and residuals follow from the imported curves."""
    known, every = read(log).reference, by_form(read_curves(log, STREAM))
    made = {key: item for one in every for key, item in groups_of(one, EPSILON).items()}
    assert set(known.groups) == set(made)
    for key, group in known.groups.items():
        assert (group.values, group.residual) == (made[key].values, made[key].residual)
        assert group.curves.equals(made[key].curves)
    for part in every:
        ((rows, times),) = known.times(part.part)
        assert rows.all()
        assert set(times.regime) == {"R3"}


def test_bands_are_of_what_each_regime_did_not_know(log: Layout) -> None:
    """The band of a regime is computed from curves that were left out as that regime requires."""
    (take,) = read_scope(log, PUBLIC, stream=KERNELS)
    (event,) = take.events_of(BandsCalibrated)
    data: BandsCalibrated = event.data
    assert (data.epsilon, data.covered) == (EPSILON, COVERED)
    bands = {band.regime: band for band in data.bands}
    assert list(bands) == ["R0", "R1", "R2", "R3"]
    assert {band.regime: band.curves for band in data.bands} == {
        "R0": 29, "R1": 29, "R2": 29, "R3": 10,
    }  # fmt: skip
    for band in data.bands:
        assert (band.module, band.formats, band.routing) == ("attention", "bfloat16", "")
        assert 0 < band.band < 1
    every = by_form(read_curves(log, STREAM))
    for regime, fold in WITHOUT.items():
        values = [
            value
            for of, rows, known in predictions_of(fold, every, CHIPS, EPSILON)
            for value in needed_shifts(of, rows, known, EPSILON)
        ]
        assert bands[regime].band == band_of(values)
        exact = sum(value == 0 for value in values) / len(values)
        assert bands[regime].hit == pytest.approx(exact, abs=1e-4)
        assert bands[regime].hit <= bands[regime].within_x2 <= 1
        assert bands[regime].hit <= bands[regime].covered <= 1
    assert read(log).bands["R2", "attention", "bfloat16", ""] == bands["R2"]


@pytest.mark.slow
def test_the_same_again_is_the_same(log: Layout, layout: Layout) -> None:
    """A second calibration from the same curves seals nothing new."""
    before = {path: path.read_bytes() for path in log.events.rglob("*") if path.is_file()}
    seal = calibrated(log)
    assert {path: path.read_bytes() for path in log.events.rglob("*") if path.is_file()} == before
    put(layout, STREAM, *events(OURS))
    assert calibrated(layout).plan_digest == seal.plan_digest
    ours, theirs = (
        [event.data for take in read_scope(layout_, PUBLIC, stream=KERNELS)
         for kind in (KernelReferenced, BandsCalibrated) for event in take.events_of(kind)]
        for layout_ in (log, layout)
    )  # fmt: skip
    assert ours == theirs


def test_another_tolerance_is_another_plan(log: Layout, layout: Layout) -> None:
    """The tolerance of groups and bands is part of their plan."""
    put(layout, STREAM, *events(OURS[:1]))
    assert calibrated(layout, epsilon=0.1).plan_digest != calibrated(layout).plan_digest


def test_what_cannot_be_calibrated_on_is_refused(layout: Layout) -> None:
    """An unknown stream and curves without a form are refused, and nothing is sealed."""
    with pytest.raises(EvidenceError, match="the log holds no imported curves of ours"):
        calibrated(layout)
    light = Setting(module="gemm", backend="vllm", dtype="bfloat16", d_model=512, d_ff=512)
    put(layout, STREAM, curve(light))
    with pytest.raises(EvidenceError, match="no curve of ours has a form"):
        calibrated(layout)
    assert layout.takes(PUBLIC) == []
