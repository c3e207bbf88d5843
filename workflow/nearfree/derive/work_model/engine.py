"""T(N) of a real engine's forward on a CPU: a fixed form with constants of one platform.

T(N) = sum over matrices and kernels of E (a P + c S)
       + k_attention layers heads head_dim (L + N) b N
       + k_row layers width b N
       + k_forward

E is the elements of equal matrices, count rows columns; of experts, those of one expert in each
layer. A kernel is a path, a kernel's name and the rows that it holds, as in the release's rules,
for one type of stored weights. P is the number of its passes over a matrix, and S the rows that
these serve together, out of the b N rows, or out of the k b N rows of experts. Of an expert with
rows, P counts one pass in which its weights come from memory; how many experts have rows is an
expectation (`granularity/routed_product.py`). L + N is the number of keys per row, width is heads
head_dim. a and c are in picoseconds per element, k_attention and k_row in picoseconds, k_forward in
microseconds. None is negative.

Constants belong to a platform, an engine's release, a library's features and a number of threads.
They are fitted to at most three such curves, which together cover the kernels that the forward
needs. Curves with a context as long, and with two contexts, which separate attention from other
terms that grow with rows, come first; then fewer curves before more, then the first by name. A
curve covers a kernel that it ran if the share of its products in the weights that a token reads is
at least half of that in the forward: a small part of T(N) determines its constant too badly. Curves
of the forward itself are used only where the others do not cover it; the answer is then in sample.

A forward with experts is answered by curves of the same matrices alone, over other contexts,
batches or layouts: constants of other models' experts did not carry over. Its products of less than
2 % of what a token reads, such as routers, have no term, since no curve tells their constants.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations

import numpy as np
from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION as KIND
from nearfree.derive.granularity.engine import EngineRules, MatrixGroup, product_name
from nearfree.derive.work_model.family import Array
from nearfree.errors import EvidenceError
from nearfree.sources.answers.ggml import Passes
from nearfree.sources.answers.ggml_cpu import NAMES, UNREAD
from nearfree.sources.answers.ggml_experts import EXPERT_PATH

PASS, SERVED = "a pass", "a served row"
"""The suffixes of a kernel's two constants, after the kernel's name."""
COVERED = 0.9
"""Share of the fitted points whose error of T(N) / T(baseline) is within the band."""
_TINY = 1e-10
Terms = Mapping[str, float]
"""The factor of each constant in T(N) of a forward, by the constant's name."""


class EngineConstants(Struct, frozen=True, kw_only=True):
    """Constants by name, in picoseconds or microseconds, and the error band of T(N) / T(baseline).

    `band` is a logarithm. `points` is the number of fitted points, `curves` the names of their
    curves.
    """

    values: dict[str, float]
    band: float
    points: int
    curves: tuple[str, ...]

    def latency_us(self, terms: Terms) -> float:
        """Return T(N) in microseconds of a forward with these terms."""
        return sum(self.values.get(name, 0.0) * amount for name, amount in terms.items())


class FittedCurve(Struct, frozen=True):
    """A measured curve to fit: T(N) in microseconds by N, and its terms at each N."""

    name: str
    latency_us: Mapping[int, float]
    terms: Mapping[int, Terms]
    baseline: int


def fit_engine(curves: Sequence[FittedCurve]) -> EngineConstants:
    """Return the constants that fit T(N) of some curves best; none is negative.

    The residual of a point is its predicted over its measured T(N), minus 1.

    A kernel's constant per served row is left out where all its passes serve equally many rows, so
    that the curves cannot separate it from the constant per pass; the latter then includes it.

    The band is the 0.9 quantile of |log| of predicted over measured T(N) / T(baseline), times
    sqrt(p / (p - c)) for p points and c constants above zero, since these points were fitted.
    """
    points = [(curve, n) for curve in curves for n in sorted(curve.latency_us)]
    rows = [curve.terms[n] for curve, n in points]
    measured = np.array([curve.latency_us[n] for curve, n in points])
    names = list(dict.fromkeys(name for terms in rows for name in terms))
    matrix = np.array([[terms.get(name, 0.0) for name in names] for terms in rows])
    kept = [i for i, name in enumerate(names) if not _same_as_a_pass(name, names, matrix)]
    fitted = nonnegative(matrix[:, kept] / measured[:, None], np.ones(len(points)))
    values = {names[i]: float(value) for i, value in zip(kept, fitted, strict=True)}
    predicted = matrix[:, kept] @ fitted
    errors: list[float] = []
    log_errors = np.log(np.maximum(predicted, _TINY) / measured)
    ends = np.cumsum([len(curve.latency_us) for curve in curves])
    for curve, log_error in zip(curves, np.split(log_errors, ends[:-1]), strict=True):
        first = sorted(curve.latency_us).index(curve.baseline)
        errors += np.abs(np.delete(log_error - log_error[first], first)).tolist()
    positive = int((fitted > 0).sum())
    wider = (len(points) / max(len(points) - positive, 1)) ** 0.5
    band = wider * float(np.quantile(errors, COVERED)) if errors else 0.0
    return EngineConstants(
        values=values,
        band=band,
        points=len(points),
        curves=tuple(curve.name for curve in curves),
    )


def _same_as_a_pass(name: str, names: Sequence[str], matrix: Array) -> bool:
    """Return whether a kernel's served rows are proportional to its passes at all points."""
    if not name.endswith(SERVED):
        return False
    served = matrix[:, names.index(name)]
    passes = matrix[:, names.index(name.removesuffix(SERVED) + PASS)]
    ratio = served[passes > 0] / passes[passes > 0]
    return bool(np.ptp(ratio) <= _TINY * ratio.max())


def nonnegative(matrix: Array, target: Array) -> Array:
    """Return the x >= 0 that minimises |matrix x - target|, by active sets.

    A constant is freed while the error falls with it, and held at zero again where it would become
    negative (Lawson and Hanson, Solving Least Squares Problems, ch. 23).
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    count = scaled.shape[1]
    x, free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(10 * count + 10):
        slope = scaled.T @ (target - scaled @ x)
        slope[free] = -np.inf
        if free.all() or slope.max() <= _TINY * max(1.0, float(np.linalg.norm(target))):
            break
        free[int(np.argmax(slope))] = True
        while True:
            best = np.zeros(count)
            best[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            below = free & (best <= _TINY)
            if not below.any():
                break
            gaps = x[below] - best[below]
            step = float(np.min(x[below] / np.where(gaps > 0, gaps, 1.0)))
            x = np.where(free, x + step * (best - x), 0.0)
            free &= x > _TINY
        x = best
    return np.asarray(x / scale)


MOST_CURVES = 3
LEAST_SHARE_RATIO = 0.5
"""Least ratio of a type's share of the weights that a token reads, curve's to forward's."""
SMALL_SHARE = 0.02
"""Share of the weights that a token reads below which products beside experts have no term."""
OF_STATES = "ssm_"
"""What the names of products of layers with a recurrent state begin with."""
ATTENTION, BETWEEN, FORWARD = KIND.title, "between products", "a forward"
_LEAST_CONTEXTS = 2
_PS = 1e-6
"""Microseconds per picosecond."""
_RULE_FLAGS = NAMES | UNREAD
"""The CPU flags that rules read."""


class EngineCurve(Struct, frozen=True, kw_only=True):
    """A measured curve of an engine: the rules of what ran, and T(N) in microseconds by N.

    `name` is unique among a platform's curves, `key` is that of the setting, and `event_id` is its
    first visit.
    """

    name: str
    key: str
    platform: str
    rules: EngineRules
    baseline: int
    latency_us: dict[int, float]
    event_id: str


class Calibrated(Struct, frozen=True, kw_only=True):
    """Constants and their fitted curves; `in_sample` if the forward's own curve is one of them."""

    constants: EngineConstants
    curves: tuple[EngineCurve, ...]
    in_sample: bool


def kernel_name(kind: str, passes: Passes) -> str:
    """Return the name of a kernel for a type of weights."""
    return f"{kind} {passes.path} {passes.kernel} of {passes.holds}"


def products_of(kernel: str) -> str:
    """Return the name of the products that a kernel of this name runs."""
    weight_type, path, *_ = kernel.split()
    return product_name(weight_type, routed=path.startswith(EXPERT_PATH))


WHOLE_TILES = ("tiled", f"{EXPERT_PATH}tiled")
"""Paths that compute all rows of a tile, including rows of padding: `n_padded` of
ggml/src/ggml-cpu/tiled/tiled.cpp of llama-cpp-python 0.3.36, line 543."""


def counted_groups(rules: EngineRules) -> tuple[MatrixGroup, ...]:
    """Return the matrices whose products have a term."""
    if rules.experts is None:
        return rules.matrix_groups
    return tuple(group for group in rules.matrix_groups if rules.share(group.name) >= SMALL_SHARE)


def needed_kernels(rules: EngineRules, grid: Iterable[int]) -> set[str]:
    """Return the names of the kernels with a term that forwards over these N run."""
    return {
        kernel_name(group.matrix.type, passes)
        for n in grid
        for group in counted_groups(rules)
        for passes in group.product.passes(rules.forward.batch * n)
    }


def terms(rules: EngineRules, n: int) -> Terms:
    """Return the factor of each constant in T(N) of a forward; constant times factor is in us."""
    forward = rules.forward
    rows, shape = forward.batch * n, forward.shape
    factors: dict[str, float] = {}
    for group in counted_groups(rules):
        for passes in group.product.passes(rows):
            name = kernel_name(group.matrix.type, passes)
            served = passes.times * passes.holds if passes.path in WHOLE_TILES else passes.serves
            for suffix, amount in ((PASS, passes.unpacked), (SERVED, served)):
                key = f"{name}: {suffix}"
                factors[key] = factors.get(key, 0.0) + _PS * group.elements * amount
    width = shape.heads * shape.head_dim
    factors[ATTENTION] = _PS * shape.layers * width * (forward.context + n) * rows
    factors[BETWEEN] = _PS * shape.layers * width * rows
    factors[FORWARD] = 1.0
    return factors


def times_by_type(rules: EngineRules, constants: EngineConstants, n: int) -> dict[str, float]:
    """Return the microseconds of a forward over N: by name of products, and per other term."""
    parts: dict[str, float] = {}
    for name, amount in terms(rules, n).items():
        part = products_of(name) if name.endswith((PASS, SERVED)) else name
        parts[part] = parts.get(part, 0.0) + constants.values.get(name, 0.0) * amount
    return parts


def covered_kernels(rules: EngineRules, needed: set[str], curve: EngineCurve) -> set[str]:
    """Return the needed kernels that a curve ran with a large enough share of their type."""
    return {
        name
        for name in needed & needed_kernels(curve.rules, curve.latency_us)
        if curve.rules.share(products_of(name))
        >= LEAST_SHARE_RATIO * rules.share(products_of(name))
    }


def chosen_curves(
    rules: EngineRules, needed: set[str], curves: Sequence[EngineCurve]
) -> tuple[EngineCurve, ...] | None:
    """Return the curves to fit constants to, None if no three of them cover the needed kernels.

    Sets with a context as long as the forward's come first, then those with two contexts, then
    smaller sets, then the first by name.
    """
    ordered = sorted(curves, key=lambda curve: (curve.name, curve.key))
    covered_by = {curve.key: covered_kernels(rules, needed, curve) for curve in ordered}
    candidates = [curve for curve in ordered if covered_by[curve.key]]
    sizes = range(1, MOST_CURVES + 1)
    covering = [
        subset
        for subset in chain.from_iterable(combinations(candidates, size) for size in sizes)
        if needed <= set().union(*(covered_by[curve.key] for curve in subset))
    ]

    def penalty(subset: tuple[EngineCurve, ...]) -> tuple[bool, bool, int]:
        contexts = {curve.rules.forward.context for curve in subset}
        return max(contexts) < rules.forward.context, len(contexts) < _LEAST_CONTEXTS, len(subset)

    return min(covering, key=penalty, default=None)


def calibrated_engine(
    rules: EngineRules,
    grid: Sequence[int],
    platform: str,
    curves: Sequence[EngineCurve],
) -> Calibrated:
    """Return constants for a forward over these N.

    Parameters
    ----------
    curves
        The curves on record, of any platform; those of the forward itself are the last resort.

    Raises
    ------
    EvidenceError
        There is no curve over two N or more of the platform, release, features and threads, or none
        that ran a needed kernel; the message names it. Or there is none of the same experts, or
        layers have a state, of whose time the form has no term.
    """
    forward = rules.forward
    matching = [
        curve
        for curve in curves
        if curve.platform == platform and shares_constants(curve.rules, rules)
    ]
    # A curve of one N has no ratio, and no error of one.
    usable = [curve for curve in matching if len(curve.latency_us) > 1]
    threads = f"{forward.threads} thread{'s' if forward.threads > 1 else ''}"
    subject = f"{forward.engine} {forward.release} with {threads} on {platform}"
    measure = f"`nearfree measure {platform} --engine {forward.engine} --model FILE.gguf`"
    if any(matrix.part.startswith(OF_STATES) for matrix in forward.matrices):
        reason = "layers have a recurrent state, and T(N) has no term for the time to advance it"
        raise EvidenceError(reason, remedy=f"Measure the file there: {measure}")
    remedy = f"Measure the file there: {measure}, or a study of the module engine with its types"
    if not usable:
        range_text = " over two N or more" if matching else ""
        raise EvidenceError(f"no curve of {subject}{range_text} is on record", remedy=remedy)
    if rules.experts is not None:
        usable = [curve for curve in usable if curve.rules.forward.matrices == forward.matrices]
        if not usable:
            raise EvidenceError(
                f"no curve of {subject} with these matrices is on record, and constants of other "
                "models' experts do not carry over",
                remedy=f"Measure the file there: {measure}",
            )
    needed = needed_kernels(rules, grid)
    own_keys = {curve.key for curve in usable if _is_same_forward(curve.rules, rules)}
    others = chosen_curves(rules, needed, [curve for curve in usable if curve.key not in own_keys])
    chosen = others or chosen_curves(rules, needed, usable)
    if chosen is None:
        all_covered = set().union(*(covered_kernels(rules, needed, curve) for curve in usable))
        missing = sorted(needed - all_covered)
        raise EvidenceError(
            f"no curve of {subject} ran enough of {', '.join(missing)}"
            if missing
            else f"no {MOST_CURVES} curves of {subject} together ran {', '.join(sorted(needed))}",
            remedy=remedy,
        )
    fitted = [
        FittedCurve(
            curve.name,
            curve.latency_us,
            {n: terms(curve.rules, n) for n in curve.latency_us},
            curve.baseline,
        )
        for curve in chosen
    ]
    return Calibrated(
        constants=fit_engine(fitted),
        curves=chosen,
        in_sample=any(curve.key in own_keys for curve in chosen),
    )


def shares_constants(one: EngineRules, other: EngineRules) -> bool:
    """Return whether two forwards share constants: release, threads and CPU flags are equal."""
    left, right = one.forward, other.forward
    if (left.engine, left.release, left.threads) != (right.engine, right.release, right.threads):
        return False
    return one.flags & _RULE_FLAGS == other.flags & _RULE_FLAGS


def _is_same_forward(one: EngineRules, other: EngineRules) -> bool:
    """Return whether two forwards are equal in matrices, shape, batch, context and repacking."""
    left, right = one.forward, other.forward
    return (left.batch, left.context, left.repack, left.shape, frozenset(left.matrices)) == (
        right.batch, right.context, right.repack, right.shape, frozenset(right.matrices),
    )  # fmt: skip
