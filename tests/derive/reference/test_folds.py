"""What is left out when a curve is predicted: folds, twins and GPUs, and the bands that result."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from nearfree.derive.reference import folds, groups
from nearfree.derive.reference.build import Curves
from nearfree.derive.reference.folds import (
    FOLD_KINDS,
    FOLDS,
    Fold,
    band_of,
    calibrated_bands,
    model_digests,
    needed_shifts,
    predictions_of,
)
from nearfree.derive.reference.regimes import GroupTimes
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.family import Family, Fitted, Flags, boundaries
from nearfree.derive.work_model.fit import Measured

from derive.reference.made import (
    CHIPS,
    EPSILON,
    HEADS,
    LAYER,
    ROWS,
    curves,
    noisy,
    only_curves,
    products,
)
from derive.work_model.imported import TRUE

Predictions = list[tuple[Curves, Flags, GroupTimes]]
MODELS = (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
LAYERS = [
    {**LAYER, "d_model": d_model, "d_ff": d_ff, "platform": platform, "backend_version": release}
    for platform in ("h100", "h200", "b200")
    for d_model in MODELS
    for d_ff, release in ((512, "1.0"), (768, "2.0"))
]
"""Models with two shapes each, on two siblings and a stranger."""
BOTH_RELEASES = [
    *LAYERS,
    *({**LAYER, "d_model": d_model, "backend_version": "2.0"} for d_model in MODELS[:6]),
]
"""Of six shapes of the H100 there are curves of two releases."""
OURS = curves(*LAYERS, bent=noisy(7))


def true(family: Family, _measured: Measured, _epsilon: float) -> Fitted:
    """Return the constants that the curves follow, instead of a fit."""
    return TRUE[family.name]


@pytest.fixture(scope="module")
def predictions() -> dict[Fold, Predictions]:
    """Return each regime's predictions for the layers; for R3 also those of the second release."""
    twins = curves(*BOTH_RELEASES, bent=noisy(8))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(groups, "fit", true)
        return {
            fold: list(predictions_of(fold, twins if fold == "R3" else OURS, CHIPS, EPSILON))
            for fold in FOLD_KINDS
        }


def fields_of(curves: Curves, rows: Flags, *names: str) -> list[tuple[Any, ...]]:
    """Return some fields of the predicted rows."""
    return curves.part.rows.filter(pl.Series(rows)).select(names).rows()


def answering(known: GroupTimes, *names: str) -> set[tuple[Any, ...]]:
    """Return some fields of all curves that are used for answers."""
    return {row for group in known.groups for row in group.curves.select(names).rows()}


def digest(text: str) -> bytes:
    return hashlib.sha1(text.encode(), usedforsecurity=False).digest()


@pytest.mark.parametrize(
    ("question", "model", "shape"),
    [
        ({**ROWS, "d_model": 5120}, "5120", "5120,8192"),
        (LAYER, "4096,256,8", "4096,256,8,512"),
        ({**HEADS, "kv_heads": 8}, "32,8,128", "32,8,128"),
    ],
)
def test_folds_follow_from_a_text(question: dict[str, Any], model: str, shape: str) -> None:
    """The SHA-1 of `K`, `d_model,experts,top_k` or `heads,kv_heads,head_dim`; R2s adds `d_ff`."""
    rows = only_curves(question).part.rows
    assert model_digests(rows) == [digest(model)]
    assert model_digests(rows, shape=True) == [digest(shape)]
    assert FOLDS == 5


@pytest.mark.parametrize(("fold", "shape"), [("R2m", False), ("R2s", True)])
def test_a_fold_is_answered_by_the_others(
    predictions: dict[Fold, Predictions], fold: Fold, *, shape: bool
) -> None:
    """A fold's curves are predicted from the other folds, without its models (R2m) or shapes (R2s).

    All curves of a fold (the first byte of the hash modulo 5) are predicted at once, on all
    platforms.
    """
    names = ("d_model", "experts", "top_k") + (("d_ff",) if shape else ())
    everywhere: set[tuple[Any, ...]] = set()
    for held_out, rows, known in predictions[fold]:
        mine = set(fields_of(held_out, rows, *names))
        assert mine.isdisjoint(answering(known, *names))
        of = model_digests(held_out.part.rows.filter(pl.Series(rows)), shape=shape)
        assert len({one[0] % 5 for one in of}) == 1
        theirs = {digest(",".join(map(str, row)))[0] % 5 for row in answering(known, *names)}
        assert theirs.isdisjoint({of[0][0] % 5})
        everywhere |= mine
    assert len(everywhere) == len(MODELS) * (2 if shape else 1)


def test_a_new_shape_of_a_known_model_is_less_than_a_new_model(
    predictions: dict[Fold, Predictions],
) -> None:
    """R2s answers with other shapes of the same model; R2m answers with none."""
    known = {
        fold: any(
            set(fields_of(held_out, rows, "d_model")) & answering(group_times, "d_model")
            for held_out, rows, group_times in predictions[fold]
        )
        for fold in ("R2m", "R2s")
    }
    assert known == {"R2m": False, "R2s": True}


@pytest.mark.parametrize("fold", ["R0", "R1", "R2m", "R2s"])
def test_every_curve_is_asked_once(predictions: dict[Fold, Predictions], fold: Fold) -> None:
    """Each curve of each platform is predicted once, with T(N) over its grid."""
    counted = {id(measured): np.zeros(measured.part.rows.height, dtype=int) for measured in OURS}
    for held_out, rows, known in predictions[fold]:
        counted[id(held_out)] += rows
        assert known.latency_us.shape == held_out.part.counts[rows].shape
        assert np.isfinite(known.latency_us).all()
    assert {count for counts in counted.values() for count in counts} == {1}


def test_a_gpu_is_left_out_and_its_siblings(predictions: dict[Fold, Predictions]) -> None:
    """R1 leaves out the GPU itself and uses its siblings; R0 leaves out the siblings, too."""
    for fold, expected in (
        ("R1", {"h100": {"h200"}, "h200": {"h100"}, "b200": {"h100", "h200"}}),
        ("R0", {"h100": {"b200"}, "h200": {"b200"}, "b200": {"h100", "h200"}}),
    ):
        platforms = {
            held_out.part.rows["platform"][0]: {group.key.platform for group in known.groups}
            for held_out, _, known in predictions[fold]
        }
        assert platforms == expected


def test_another_release_answers_for_its_twins_alone(predictions: dict[Fold, Predictions]) -> None:
    """R3 predicts curves whose shape another release has, from other releases' curves alone."""
    names = ("d_model", "d_ff")
    pairs = []
    for held_out, rows, known in predictions["R3"]:
        ((release,),) = set(fields_of(held_out, rows, "backend_version"))
        assert (release,) not in answering(known, "backend_version")
        assert set(fields_of(held_out, rows, *names)) <= answering(known, *names)
        assert set(known.regime) == {"R3"}
        assert len(known.groups) == 1
        pairs += fields_of(held_out, rows, "platform", "d_model", "d_ff", "backend_version")
    assert sorted(pairs) == sorted(
        ("h100", d_model, 512, release) for d_model in MODELS[:6] for release in ("1.0", "2.0")
    )


def test_one_release_has_no_twins() -> None:
    """Where no shape was measured in two releases, R3 predicts nothing."""
    assert list(predictions_of("R3", curves(*products()), CHIPS, EPSILON)) == []
    assert list(predictions_of("R3", OURS, CHIPS, EPSILON)) == []


def test_groups_are_made_without_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are fitted without the curves left out, so their values do not matter."""
    left: list[list[bool]] = []
    plain = folds.groups_of

    def spied(every: Curves, epsilon: float, kept: Flags | None = None) -> Any:
        assert kept is not None
        left.append([not flag for flag in kept])
        return plain(every, epsilon, kept)

    monkeypatch.setattr(folds, "groups_of", spied)
    one = only_curves(*products(depths=(*MODELS[4:], 9216, 10240, 12288)))
    of = [model_digest[0] % 5 for model_digest in model_digests(one.part.rows)]
    odd = one.latency_us * np.where(np.array(of) == of[0], 7.0, 1.0)[:, None]
    for latency in (one.latency_us, odd):
        bent = Curves(one.part, latency, one.members, one.keys)
        first = [
            known.latency_us
            for _, rows, known in predictions_of("R2m", [bent], CHIPS, EPSILON) if rows[0]
        ]  # fmt: skip
        assert len(first) == 1
        if latency is one.latency_us:
            family_rows = first[0]
    assert first[0].tolist() == family_rows.tolist()
    assert left[:5] == [[part == fold for part in of] for fold in range(5)]


def known_of(every: Curves, latency: np.ndarray) -> GroupTimes:
    """Return predictions in regime R2 with some T(N), one row per curve."""
    height = len(latency)
    return GroupTimes(latency_us=latency, regime=["R2"] * height, groups=(), curves=[()] * height)


ONE = only_curves(*products())
EVERY_ROW = np.ones(len(ONE.keys), dtype=bool)


@given(arrays.arrays(float, ONE.latency_us.shape, elements=st.floats(-0.5, 0.5)))
def test_a_band_of_what_is_needed_meets_the_boundary(off: np.ndarray) -> None:
    """The needed shift is the least whose interval holds N_max; for exact ratios it is 0."""
    known_models = known_of(ONE, ONE.latency_us * np.exp(off))
    moved = needed_shifts(ONE, EVERY_ROW, known_models, EPSILON)
    ratio = ONE.latency_us / ONE.latency_us[:, :1]
    true = last_pass(ONE.part.counts & (ratio <= 1 + EPSILON))
    told_ratio = known_models.latency_us / known_models.latency_us[:, :1]

    def meets(band: np.ndarray) -> np.ndarray:
        boundary_rows = boundaries(told_ratio, ONE.part.counts, EPSILON, band[:, None])
        return np.asarray((boundary_rows.low <= true) & (true <= boundary_rows.high))

    assert meets(moved * (1 + 1e-9) + 1e-9).all()
    short = moved > 1e-6
    assert not meets(np.where(short, moved * 0.999, 0.0))[short].any()
    assert needed_shifts(ONE, EVERY_ROW, known_of(ONE, ONE.latency_us * 3), EPSILON).max() < 1e-12


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_a_band_covers_four_in_five(values: list[float], random: Any) -> None:
    """A band, rounded as stored, covers four in five of its curves, and at most one more."""
    band = band_of(values)
    near = 5e-4 * band
    covered = sum(value <= band + near for value in values)
    assert covered >= 0.8 * len(values)
    assert sum(value < band - near for value in values) < 0.8 * (len(values) + 1)
    assert band_of(random.sample(values, len(values))) == band


@pytest.mark.parametrize("fold", FOLD_KINDS)
def test_each_half_has_its_band(predictions: dict[Fold, Predictions], fold: Fold) -> None:
    """The band of each half covers four in five curves of the models that it is calibrated on."""
    bands = calibrated_bands(predictions[fold], EPSILON)
    moved: dict[int, list[float]] = {0: [], 1: []}
    for held_out, rows, known in predictions[fold]:
        halves = [one[1] % 2 for one in model_digests(held_out.part.rows.filter(pl.Series(rows)))]
        for half, value in zip(halves, needed_shifts(held_out, rows, known, EPSILON), strict=True):
            moved[half].append(value)
    assert set(bands) == {(("moe_ffn", "bfloat16", "balanced"), half) for half in (0, 1)}
    assert all(moved.values())
    for (_, half), band in bands.items():
        assert band == band_of(moved[half])


def test_a_half_without_models_has_the_other_s_band() -> None:
    """If all models are in one half, both halves have the band of that half."""
    one = only_curves(*(
        {**HEADS, "heads": heads}
        for heads in heads_of(half=0, wanted=4)
    ))  # fmt: skip
    known_models = known_of(one, one.latency_us**1.5)
    bands = calibrated_bands([(one, np.ones(4, dtype=bool), known_models)], EPSILON)
    assert len(bands) == 2
    assert len(set(bands.values())) == 1


def heads_of(*, half: int, wanted: int) -> Iterable[int]:
    """Return head counts whose models all fall into one half."""
    every = (8 * heads for heads in range(1, 100))
    mine = [heads for heads in every if digest(f"{heads},32,128")[1] % 2 == half]
    return mine[:wanted]
