"""T(N) of an engine's forward: its terms, the curves for its constants, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from nearfree.derive.work_model.engine import (
    ATTENTION,
    BETWEEN,
    FORWARD,
    PASS,
    SERVED,
    FittedCurve,
    calibrated_engine,
    chosen_curves,
    covered_kernels,
    fit_engine,
    needed_kernels,
    terms,
    times_by_type,
)
from nearfree.errors import EvidenceError

from derive.engines import BUILT, GRID, SHAPE, curve, matrix, rules, times

GEMM16, GEMM4, GEMV = (
    "q4_k repack_gemm q4_K_8x8_q8_K of 16",
    "q4_k repack_gemm q4_K_8x8_q8_K of 4",
    "q4_k repack_gemv q4_K_8x8_q8_K of 1",
)
CONSTANTS = {
    f"of 16: {PASS}": 3.0,
    f"of 4: {PASS}": 1.5,
    f"of 3: {PASS}": 1.2,
    f"of 2: {PASS}": 0.8,
    f"of 1: {PASS}": 0.5,
    ATTENTION: 2.0,
    BETWEEN: 400.0,
    FORWARD: 2000.0,
}


def name_of(kind: str, path: str, holds: int, known) -> str:
    """Return the name of the only kernel of a type, path and tile."""
    (constants_,) = (
        needed_kernel
        for needed_kernel in needed_kernels(known, range(1, 34))
        if needed_kernel.startswith(f"{kind} {path} ") and needed_kernel.endswith(f" of {holds}")
    )
    return constants_


def test_a_tile_that_is_filled_up_is_computed_whole() -> None:
    """Stored weights: nine to sixteen rows cost as much as sixteen, seventeen one tile more."""
    known = rules("q4_k", release=BUILT, repack=False)
    served = [sum(t for name, t in terms(known, n).items() if name.endswith(SERVED))
              for n in (9, 16, 17)]  # fmt: skip
    assert served[0] == served[1] == pytest.approx(served[2] / 2)


def test_terms_are_elements_times_passes_and_rows() -> None:
    """Seventeen rows over repacked weights are one pass of sixteen rows and one pass of one."""
    known = rules("q4_k", batch=1, context=100)
    elements, amounts = 60 * 1536 * 576, terms(known, 17)
    sixteen, one = (name_of("q4_k", path, holds, known)
                    for path, holds in (("repack_gemm", 16), ("repack_gemv", 1)))  # fmt: skip
    assert amounts == pytest.approx({
        f"{sixteen}: {PASS}": 1e-6 * elements,
        f"{sixteen}: {SERVED}": 16e-6 * elements,
        f"{one}: {PASS}": 1e-6 * elements,
        f"{one}: {SERVED}": 1e-6 * elements,
        ATTENTION: 1e-6 * 30 * 9 * 64 * (100 + 17) * 17,
        BETWEEN: 1e-6 * 30 * 9 * 64 * 17,
        FORWARD: 1.0,
    })  # fmt: skip


def test_rows_of_all_requests_count() -> None:
    """At N the products of b requests have b N rows, and attention reads each request's keys."""
    several, one = terms(rules("q8_0", batch=4), 3), terms(rules("q8_0"), 12)
    same = {*several} - {ATTENTION}
    assert {name: several[name] for name in same} == {name: one[name] for name in same}
    assert several[ATTENTION] / one[ATTENTION] == pytest.approx((64 + 3) / (64 + 12))


@settings(max_examples=20)
@given(st.lists(st.floats(0.2, 5.0), min_size=6, max_size=6), st.floats(100.0, 5000.0))
def test_known_constants_are_found_again(values: list[float], forward_us: float) -> None:
    """Curves of two models give the constants they were made with, and T(N) of a third model.

    With one model the constant of the rows could not be told from that of the passes.
    """
    known = rules("q4_k")
    names = [
        name_of("q4_k", path, holds, known)
        for path, holds in (("repack_gemm", 16), ("repack_gemm", 4), ("repack_gemv", 1))
    ]
    given_ = {f"{name}: {PASS}": value for name, value in zip(names, values[:3], strict=True)}
    given_ |= {ATTENTION: values[3], BETWEEN: 100 * values[4], FORWARD: forward_us}
    curves = [
        curve(rules("q4_k", context=1024), given_, name="a"),
        curve(rules("q4_k", "q4_k", batch=4), given_, name="b", grid=range(1, 9)),
    ]
    engine_rules = rules("q4_k", "q4_k", "q4_k", context=512)
    calibration = calibrated_engine(engine_rules, GRID, "cpu", curves)
    assert not calibration.in_sample
    assert calibration.constants.band == pytest.approx(0.0, abs=1e-5)
    for n, us in times(engine_rules, given_, GRID).items():
        assert calibration.constants.latency_us(terms(engine_rules, n)) == pytest.approx(
            us, rel=1e-4
        )


def test_as_few_curves_as_cover_and_then_the_first_by_name() -> None:
    """One curve that has all kernels is preferred to two that have them together."""
    engine_rules = rules("q4_k", "q8_0")
    needed = needed_kernels(engine_rules, GRID)
    halves = [curve(rules("q4_k"), CONSTANTS, name="a"), curve(rules("q8_0"), CONSTANTS, name="b")]
    both = [curve(rules("q4_k", "q8_0"), CONSTANTS, name=name) for name in ("d", "c")]
    assert [c.name for c in chosen_curves(engine_rules, needed, [*halves, *both])] == ["c"]
    assert [c.name for c in chosen_curves(engine_rules, needed, halves)] == ["a", "b"]
    assert chosen_curves(engine_rules, needed, halves[:1]) is None


def test_a_context_as_long_and_a_second_one_come_first() -> None:
    """Two contexts, one of them long enough, are preferred to a single curve."""
    needed = needed_kernels(rules(), GRID)
    known = {L: curve(rules(context=L), CONSTANTS, name=f"L={L}") for L in (64, 256, 1024)}
    for context, some, names in (
        (64, (64, 256, 1024), ["L=1024", "L=256"]),
        (512, (64, 256), ["L=256", "L=64"]),
        (512, (64, 1024), ["L=1024", "L=64"]),
        (64, (1024,), ["L=1024"]),
    ):
        curves = chosen_curves(rules(context=context), needed, [known[L] for L in some])
        assert [curve.name for curve in curves] == names


def test_a_small_share_covers_nothing() -> None:
    """A type with a fifth of a curve's weights calibrates no model of that type."""
    mixed = curve(rules("q4_1", "q4_1", "q8_0"), CONSTANTS)
    engine_rules, same = rules("q8_0"), rules("q4_1", "q4_1", "q8_0", context=1)
    assert covered_kernels(engine_rules, needed_kernels(engine_rules, GRID), mixed) == set()
    needed = needed_kernels(same, GRID)
    assert covered_kernels(same, needed, mixed) == needed


def test_a_curve_alone_is_in_sample() -> None:
    """A setting's own curve is used only if no other curves cover the setting."""
    own = curve(rules(), CONSTANTS, name="own")
    calibration = calibrated_engine(rules(), GRID, "cpu", [own])
    assert (calibration.in_sample, [c.name for c in calibration.curves]) == (True, ["own"])
    fours = curve(rules(batch=2), CONSTANTS, name="aaa", grid=(2, 4, 8, 16))
    engine_constants = calibrated_engine(rules(), GRID, "cpu", [own, fours])
    assert (engine_constants.in_sample, [c.name for c in engine_constants.curves]) == (
        True,
        ["own"],
    )
    longer = curve(rules(context=128), CONSTANTS, name="zzz")
    constants_ = calibrated_engine(rules(), GRID, "cpu", [own, longer])
    assert (constants_.in_sample, [c.name for c in constants_.curves]) == (False, ["zzz"])


@pytest.mark.parametrize(
    ("changes", "platform"),
    [
        ({"threads": 2}, "cpu"),
        ({"release": BUILT}, "cpu"),
        ({"system_info": "AVX2 = 1 | FMA = 1 | F16C = 1 | LLAMAFILE = 1 | REPACK = 1"}, "cpu"),
        ({}, "elsewhere"),
    ],
)
def test_constants_are_of_one_platform_release_threads_and_features(changes, platform) -> None:
    """Curves of another platform, release, thread count or feature are not used, and named."""
    with pytest.raises(
        EvidenceError, match=rf"no curve of llama_cpp .* on {platform} is on record"
    ):
        calibrated_engine(rules(**changes), GRID, platform, [curve(rules(context=1), CONSTANTS)])


def test_one_n_says_nothing_of_a_ratio() -> None:
    """Curves with a single N calibrate nothing."""
    one, several = (curve(rules(context=1), CONSTANTS, name=name, grid=grid)
                    for name, grid in (("one", (1,)), ("several", GRID)))  # fmt: skip
    with pytest.raises(EvidenceError, match=r"no curve of .* over two N or more is on record"):
        calibrated_engine(rules(), (1,), "cpu", [one])
    assert [c.name for c in calibrated_engine(rules(), (1,), "cpu", [one, several]).curves] == [
        "several"
    ]


def test_a_path_that_no_curve_ran_is_refused_by_name() -> None:
    """A kernel without a curve is refused by type, path and rows."""
    ran = curve(rules(batch=4), CONSTANTS, grid=(1, 2, 4, 8))
    with pytest.raises(EvidenceError, match=r"ran enough of q4_k repack_gemv \S+ of 1\. Measure"):
        calibrated_engine(rules(), GRID, "cpu", [ran])


def test_parts_are_of_types() -> None:
    """The parts of T(N), products by type, attention and the rest, sum to T(N)."""
    known = rules("q4_1", "q8_0")
    calibration = calibrated_engine(known, GRID, "cpu", [curve(known, CONSTANTS)]).constants
    parts = times_by_type(known, calibration, 4)
    assert set(parts) == {"mul_mat q4_1", "mul_mat q8_0", ATTENTION, BETWEEN, FORWARD}
    assert sum(parts.values()) == pytest.approx(calibration.latency_us(terms(known, 4)))


def test_experts_have_terms_of_their_own() -> None:
    """P counts the experts with rows, S their rows; both are those of one expert in each layer.

    A router, hardly a hundredth of what a token reads, has no term.
    """
    shape = structs.replace(SHAPE, taken_experts=2)
    matrices = (
        matrix("q4_k", part="ffn_up_exps", count=3 * 8, routed=True),
        matrix("f32", part="ffn_gate_inp", rows=8, count=3),
    )
    known = rules(matrices=matrices, shape=shape)
    name, elements = "q4_k expert_gemv q4_K_8x8_q8_K of 1", 3 * 1536 * 576
    for n in (1, 2, 5):
        amounts = terms(known, n)
        with_rows = 8 * (1 - 0.75**n)
        assert amounts[f"{name}: {PASS}"] == pytest.approx(1e-6 * elements * with_rows)
        assert amounts[f"{name}: {SERVED}"] == pytest.approx(1e-6 * elements * 2 * n)
    fitted = fit_engine([FittedCurve("a", {1: 9.0}, {1: terms(known, 1)}, 1)])
    assert times_by_type(known, fitted, 1).keys() == {
        "mul_mat_id q4_k", ATTENTION, BETWEEN, FORWARD,
    }  # fmt: skip


def test_experts_are_answered_by_their_own_curves() -> None:
    """Other experts' curves and those of the type's dense products do not answer them."""
    shape = structs.replace(SHAPE, taken_experts=2)
    experts, fewer = (
        matrix("q4_k", part="ffn_up_exps", count=3 * 8, rows=rows, routed=True)
        for rows in (1536, 768)
    )
    router = matrix("f32", part="ffn_gate_inp", rows=8, count=3)
    known = rules(matrices=(experts, router), shape=shape)
    others = [
        curve(rules("q4_k"), CONSTANTS),
        curve(rules(matrices=(fewer, router), shape=shape), CONSTANTS, name="b"),
    ]
    with pytest.raises(EvidenceError, match=r"with these matrices .*do not carry over\. Measure"):
        calibrated_engine(known, GRID, "cpu", others)
    longer = rules(matrices=(experts, router), shape=shape, context=1024)
    calibrated = calibrated_engine(known, GRID, "cpu", [*others, curve(longer, CONSTANTS)])
    assert not calibrated.in_sample
    assert [item.rules for item in calibrated.curves] == [longer]
