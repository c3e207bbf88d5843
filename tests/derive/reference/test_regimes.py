"""Regimes: which curves are used for an answer, and the T(N) that results."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.backends.moe_kernels import MARLIN
from nearfree.backends.public_kernels import PUBLIC_NAMES
from nearfree.derive.reference.group_times import NEAREST
from nearfree.derive.reference.groups import Key
from nearfree.derive.reference.kriging import coordinates
from nearfree.derive.reference.regimes import REGIME_MEANINGS, REGIMES, Reference
from nearfree.derive.reference.siblings import Chip, carried_ratio

from derive.reference.made import (
    CHIPS,
    DEPTHS,
    LAYER,
    by_depth,
    products,
    reference,
)
from derive.reference.products import BETWEEN, OURS, form_of, group_on, question_with, times_of
from derive.work_model.forms import prepared


def residual_of(known: Reference, platform: str, question: dict[str, Any]) -> np.ndarray:
    """Return the residual of a platform's group for a question."""
    (part,) = prepared(question)
    places = coordinates(part.family.name, part.rows, part.features["n"])
    return group_on(known, platform).residuals(places)[0]


@pytest.mark.parametrize(
    ("changes", "regime", "platforms"),
    [
        ({"d_model": DEPTHS[2]}, "R3", ("h100",)),
        ({"d_model": DEPTHS[2], "backend_version": "9.0"}, "R3", ("h100",)),
        ({"d_model": DEPTHS[2], "batch": 32}, "R3", ("h100",)),
        ({}, "R2", ("h100",)),
        ({"dtype": "float16"}, "R2", ("h100",)),
        ({"dtype": "float16", "d_model": DEPTHS[2]}, "R3", ("h100",)),
        ({"weights": "bfloat16"}, "R2", ("h100",)),
        ({"dtype": "float16", "weights": "bfloat16", "d_model": DEPTHS[2]}, "R3", ("h100",)),
        ({"kernel": None}, "R2", ("h100",)),
        ({"platform": "h200"}, "R1", ("h100",)),
        ({"platform": "h200", "d_model": DEPTHS[2]}, "R1", ("h100",)),
        ({"platform": "b200"}, "R0", ("a100", "h100")),
        ({"kernel": "another"}, "R2", ("h100",)),
        ({"backend": "sglang"}, "R2", ("h100",)),
        ({"backend": "sglang", "kernel": None, "d_model": DEPTHS[2]}, "R3", ("h100",)),
    ],
)
def test_an_answer_stands_on_the_nearest_that_is_known(
    changes: dict[str, Any], regime: str, platforms: tuple[str, ...]
) -> None:
    """R3: kernel and shape, in any release; R2: the kernel; R1: a sibling's; R0: all others'.

    The number of rows is no part of a shape, all 16-bit formats are one, a question without a
    kernel's name has its backend's, and products are those of any backend.
    """
    times = times_of(OURS, question_with(**changes))
    assert times.regime == [regime]
    assert tuple(group.key.platform for group in times.groups) == platforms


def test_a_gpu_and_kernel_that_are_known_answer_by_form_and_residual() -> None:
    """R2 uses the GPU's own constants, times the residual interpolated from other shapes."""
    times = times_of(OURS, question_with())
    residual = residual_of(OURS, "h100", question_with())
    expected = form_of(OURS, "h100", question_with()) * np.exp(residual)
    assert times.latency_us == pytest.approx(expected)
    assert np.abs(residual).min() > 0.001


@pytest.mark.parametrize(("balance", "ratio"), [(206.0, None), (98.0, 98.0 / 295.0)])
def test_a_sibling_answers_by_its_constants_and_residuals(
    balance: float, ratio: float | None
) -> None:
    """R1 uses the siblings' constants and residuals with this GPU's facts: their geometric mean.

    On a chip of far less balance few rows of a product keep their share of the bandwidth.
    """
    groups = reference(*products("h100", "h800", "a100"), bent=by_depth).groups
    known = Reference(groups, {**CHIPS, "h200": Chip(90, balance)})
    question = question_with(platform="h200")
    times = times_of(known, question)
    logs = [
        np.log(form_of(known, name, question, ratio=ratio)) + residual_of(known, name, question)
        for name in ("h100", "h800")
    ]
    assert times.latency_us == pytest.approx(np.exp(np.mean(logs, axis=0)))
    assert [group.key.platform for group in times.groups] == ["h100", "h800"]


@pytest.mark.parametrize(
    ("here", "there", "ratio"),
    [(206.0, 295.0, 1.0), (295.0, 206.0, 1.0), (164.0, 419.0, 164 / 419), (419.0, 164.0, 1.0)],
)
def test_only_a_far_smaller_balance_changes_how_a_sibling_is_carried(
    here: float, there: float, ratio: float
) -> None:
    """Public siblings, up to 1.43, are carried by the form alone, and so is more compute."""
    assert carried_ratio(Chip(89, here), Chip(89, there)) == pytest.approx(ratio)


def test_strangers_answer_by_constants_alone() -> None:
    """R0 is the geometric mean of the form over other GPUs' constants, without a residual."""
    question = question_with(platform="b200")
    times = times_of(OURS, question)
    logs = [np.log(form_of(OURS, name, question)) for name in ("a100", "h100")]
    assert times.latency_us == pytest.approx(np.exp(np.mean(logs, axis=0)))
    assert times.curves == [()]


@pytest.mark.parametrize(
    ("here", "there", "siblings"),
    [
        (90, 90, True), (100, 103, True), (103, 100, True), (120, 121, True), (80, 86, False),
        (89, 90, False), (100, 120, False), (90, 100, False), (None, None, False),
        (None, 90, False),
    ],
)  # fmt: skip
def test_siblings_share_their_compute_capability(
    here: int | None, there: int | None, *, siblings: bool
) -> None:
    """GPUs of equal compute capability are siblings, from 10.0 on of equal major version."""
    only = {key: item for key, item in OURS.groups.items() if key.platform == "h100"}
    known = Reference(only, {"h100": Chip(there, 295.0), "h200": Chip(here, 206.0)})
    assert times_of(known, question_with(platform="h200")).regime == ["R1" if siblings else "R0"]
    left = known.without("h200", siblings=True)
    assert (len(left.groups) == 0) == siblings


@pytest.mark.parametrize(
    ("here", "there", "siblings"),
    [
        (295.0, 295.0, True), (74.0, 295.0, True), (1179.0, 295.0, True), (73.0, 295.0, False),
        (1181.0, 295.0, False), (37.0, 295.0, False), (None, 295.0, False), (295.0, None, False),
        (None, None, False),
    ],
)  # fmt: skip
def test_siblings_have_a_balance_that_is_alike(
    here: float | None, there: float | None, *, siblings: bool
) -> None:
    """Compute per bandwidth of siblings is within a factor of four; without it there are none."""
    only = {key: item for key, item in OURS.groups.items() if key.platform == "h100"}
    known = Reference(only, {"h100": Chip(90, there), "h200": Chip(90, here)})
    assert times_of(known, question_with(platform="h200")).regime == ["R1" if siblings else "R0"]
    left = known.without("h200", siblings=True)
    assert (len(left.groups) == 0) == siblings


INT4, MXFP4 = (PUBLIC_NAMES["vllm", weights, MARLIN] for weights in ("int4", "mxfp4"))
BY_SGLANG = PUBLIC_NAMES["sglang", "int4", MARLIN]


def experts(kernel: str, platform: str, weights: str, backend: str = "vllm") -> list[Any]:
    """Return layers of experts on which a Marlin kernel was measured."""
    return [
        {**LAYER, "backend": backend, "kernel": kernel, "platform": platform, "weights": weights,
         "dtype": "bfloat16", "d_model": depth}
        for depth in DEPTHS
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "platform", "weights", "regime", "groups"),
    [
        (INT4, "h100", "int4", "R2", {("h100", INT4, "int4")}),
        (INT4, "h100", "nvfp4", "R0", {("h100", INT4, "int4")}),
        (INT4, "h200", "float8", "R0", {("h100", INT4, "int4")}),
        (INT4, "a100", "int4", "R0", {("a100", BY_SGLANG, "int4")}),
        (INT4, "a100", "float8", "R0", {("a100", BY_SGLANG, "int4")}),
        (INT4, "l40s", "int4", "R0", {("l40s", MXFP4, "mxfp4")}),
        (MXFP4, "b200", "mxfp4", "R0", {("l40s", MXFP4, "mxfp4")}),
        (INT4, "b200", "nvfp4", "R0",
         {("a100", BY_SGLANG, "int4"), ("h100", INT4, "int4"), ("l40s", MXFP4, "mxfp4")}),
    ],
)  # fmt: skip
def test_marlin_answers_by_what_is_nearest_of_it(
    kernel: str, platform: str, weights: str, regime: str, groups: set[tuple[str, str, str]]
) -> None:
    """Marlin uses constants of other formats and engines on the GPU or a sibling, then elsewhere.

    Among several on one GPU those of the same format are used, and a curve of the kernel itself
    before any of them.
    """
    known = reference(
        *experts(INT4, "h100", "int4"),
        *experts(BY_SGLANG, "a100", "int4", "sglang"),
        *experts(MXFP4, "l40s", "mxfp4"),
    )
    (question, *_) = experts(kernel, platform, weights)
    times = times_of(known, {**question, "d_model": BETWEEN})
    assert times.regime == [regime]
    keys = [group.key for group in times.groups]
    assert {(key.platform, key.kernel, key.weights) for key in keys} == groups


@pytest.mark.parametrize(
    ("measured", "weights", "regime"),
    [("vllm", "int4", "R2"), ("trtllm", "int4", "R0"), ("trtllm", None, "R2")],
)
def test_weights_alone_in_few_bits_are_known_by_the_engine_s_own_curves(
    measured: str, weights: str | None, regime: str
) -> None:
    """Products with weights alone in few bits have R3 and R2 by the engine's own curves only.

    Engines share the libraries of products in one format, but not the kernels of such weights:
    another engine's curves on the same GPU give constants only.
    """
    known = reference(*products(backend=measured, kernel="matmul", weights=weights))
    asked = question_with(backend="vllm_linear", kernel=None, weights=weights)
    assert times_of(known, asked).regime == [regime]


def test_a_platform_is_left_out_with_its_siblings_or_alone() -> None:
    """A platform's groups, and on request those of its siblings, are removed from the reference."""
    known = reference(*products("h100", "h200", "a100"))

    def left(*, siblings: bool) -> set[str]:
        return {key.platform for key in known.without("h100", siblings=siblings).groups}

    assert left(siblings=False) == {"h200", "a100"}
    assert left(siblings=True) == {"a100"}
    assert times_of(known.without("h100"), question_with()).regime == ["R1"]
    assert times_of(known.without("h100", siblings=True), question_with()).regime == ["R0"]


@pytest.mark.parametrize(
    ("release", "kernel"),
    [
        ("0.5", "old"), ("1.0", "old"), ("1.9", "old"), ("2.0", "new"), ("1.10.0", "old"),
        ("2.9", "new"),
        ("3.0", "old"), ("10.0", "old"), (None, "old"),
    ],
)  # fmt: skip
def test_without_a_name_the_newest_kernel_of_the_release_answers(
    release: str | None, kernel: str
) -> None:
    """Without a name the kernel measured in the newest release up to the asked one answers.

    For a release older than all it is the kernel with most curves.
    """
    known = reference(
        *products(kernel="old", backend_version="1.0"),
        *products(kernel="new", backend_version="2.0", depths=DEPTHS[:4]),
        *products(kernel="old", backend_version="3.0", depths=DEPTHS[:1]),
    )
    times = times_of(known, question_with(kernel=None, backend_version=release))
    assert times.regime == ["R2"]
    assert [group.key.kernel for group in times.groups] == [kernel]


@pytest.mark.parametrize(
    ("platform", "dtype", "left"),
    [
        ("h100", "float8_block", {"trtllm", "sglang"}),
        ("h100", "float8", {"vllm", "sglang"}),
        ("b200", "float8", {"sglang"}),
        ("b200", "nvfp4", {"vllm", "trtllm", "sglang"}),
        ("h100", "bfloat16", {"vllm", "trtllm", "sglang"}),
        ("l40s", "bfloat16", {"vllm", "sglang"}),
    ],
)
def test_curves_unlike_a_step_speak_for_none(platform: str, dtype: str, left: set[str]) -> None:
    """Curves unlike an engine's step are not used; those of the engine's library come first.

    A named kernel uses its own curves.
    """
    on = {"platform": platform, "dtype": dtype}
    known = reference(
        *(product for name in ("vllm", "trtllm", "sglang")
          for product in products(backend=name, kernel=name, **on))
    )  # fmt: skip
    of_any = times_of(known, question_with(backend="torch", kernel=None, **on))
    assert {group.key.backend for group in of_any.groups} == left
    of_vllm = times_of(known, question_with(backend="vllm_linear", kernel=None, **on))
    assert {group.key.backend for group in of_vllm.groups} == ({"vllm"} & left or left)
    for name in ("vllm", "trtllm", "sglang"):
        named = times_of(known, question_with(backend=name, kernel=name, **on))
        assert {group.key.backend for group in named.groups} == {name}


def test_an_engine_s_own_curves_have_its_rules_steps_already() -> None:
    """A kernel's own curve (R3) already holds the steps of its rules, which are not applied again.

    Another library's curves have other steps, so the engine's rules are applied to them.
    """
    on = {"platform": "h100", "dtype": "float8", "batch": 1, "d_model": DEPTHS[2]}
    question = question_with(backend="vllm_linear", backend_version="0.24.0", kernel=None, **on)
    (part,) = prepared(question)
    assert np.isfinite(part.features["padded_0"]).all()
    for library, alike in (("vllm", True), ("sglang", False)):
        known = reference(*products(backend=library, dtype="float8", platform="h100"))
        times = times_of(known, question)
        assert times.regime == ["R3"]
        own = times_of(known, question_with(backend=library, **on))
        assert (times.latency_us == pytest.approx(own.latency_us, rel=1e-6)) is alike


def test_where_all_curves_are_unlike_a_step_none_answers() -> None:
    """Curves of single launches give no answer even if there are no others."""
    blocked = {"backend": "vllm", "dtype": "float8_block"}
    known = reference(*products(kernel="vllm", **blocked))
    assert list(known.times(*prepared(question_with(kernel=None, **blocked)))) == []


def test_nothing_is_said_of_what_no_group_knows() -> None:
    """Questions of another form or format are not answered by these curves."""
    for question in (LAYER, question_with(dtype="float8"), question_with(weights="int4")):
        (part,) = prepared(question)
        assert list(OURS.times(part)) == []


def test_every_question_is_told_once() -> None:
    """Questions of several regimes asked together get the answers that each gets alone."""
    questions = [
        question_with(platform=platform, d_model=depth)
        for platform in ("h100", "h200", "b200", "a100")
        for depth in (DEPTHS[2], BETWEEN)
    ]
    (part,) = prepared(*questions)
    seen = np.zeros(len(questions), dtype=int)
    for rows, time in OURS.times(part):
        (places,) = np.nonzero(rows)
        seen[rows] += 1
        for place, regime, times in zip(places, time.regime, time.latency_us, strict=True):
            alone = times_of(OURS, questions[place])
            assert (alone.regime, *alone.latency_us) == ([regime], pytest.approx(times))
    assert (seen == 1).all()


@given(st.permutations(list(OURS.groups)))
def test_the_order_of_groups_changes_nothing(keys: list[Key]) -> None:
    """Answers do not depend on the order in which groups are listed."""
    again = Reference({key: OURS.groups[key] for key in keys}, CHIPS)
    for platform in ("h100", "b200"):
        one, two = (
            times_of(reference, question_with(platform=platform)) for reference in (OURS, again)
        )
        assert one.latency_us.tolist() == two.latency_us.tolist()
        assert one.texts() == two.texts()


LAYERS = reference(*(
    {**LAYER, "d_ff": 512 * scale, "routing": routing}
    for scale in (1, 2, 3) for routing in ("balanced", "power_law:1.2")
))  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"kernel": "another"}, {"backend": "vllm", "kernel": "flashinfer_cutlass"}],
)
def test_another_kernel_s_curves_are_no_shape_of_this_one(changes: dict[str, Any]) -> None:
    """R0: a layer by a kernel or backend without curves uses the form's constants alone."""
    question = {**LAYER, **changes}
    times = times_of(LAYERS, question)
    assert times.regime == ["R0"]
    assert times.latency_us == pytest.approx(form_of(LAYERS, "h100", question))


@pytest.mark.parametrize(
    ("changes", "regime"),
    [
        ({}, "R3"),
        ({"routing": "power_law:1.2"}, "R3"),
        ({"routing": "power_law:1.01"}, "R2"),
        ({"routing": "skewed"}, "R2"),
        ({"routing": "power_law:1.5"}, "R2"),
        ({"ep": 8}, "R2"),
    ],
)
def test_a_layer_was_measured_with_its_loads_on_one_rank(
    changes: dict[str, Any], regime: str
) -> None:
    """Loads by another law and experts over several ranks count as not measured."""
    assert times_of(LAYERS, {**LAYER, **changes}).regime == [regime]


def test_an_answer_names_what_it_leans_on() -> None:
    """The text of an answer names regime, kernel, GPUs and curves, the nearest curves first."""
    (measured,) = times_of(OURS, question_with(d_model=DEPTHS[2])).texts()
    assert measured.startswith("R3: gemm by cublas on h100, 6 curves")
    assert f"nearest {DEPTHS[2]}x8192 of 1.0, " in measured
    assert measured.count(" of 1.0") == NEAREST
    (strange,) = times_of(OURS, question_with(platform="b200", kernel=None)).texts()
    assert strange == "R0: gemm by cublas on a100, h100, 12 curves"
    assert set(REGIME_MEANINGS) == set(REGIMES)
