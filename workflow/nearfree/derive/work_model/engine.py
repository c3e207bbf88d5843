"""T(N) of a real engine's forward on a CPU, of a fixed form with constants of one platform.

T(N) = sum over matrices and kernels of E (a P + c S)
       + k_attention layers heads head_dim (L + N) b N
       + k_row layers width b N
       + k_forward

E is the elements of equal matrices, count rows columns. A kernel is a path, a kernel's name and the
rows that it holds, as the release's rules name them, for one type of stored weights; P is the
number of its passes over a matrix and S the rows that they serve together, of the b N. L + N are
the keys that a row sees, width is heads head_dim. a and c are in picoseconds an element,
k_attention and k_row in picoseconds, k_forward in microseconds. None is negative.

Constants are those of a platform, an engine's release, a library's features and a number of
threads. They are fitted to at most three curves of those, which together cover the kernels that are
asked for. Those with a context as long, and with two contexts, by which attention is told from what
else grows with rows, come before others; then fewer before more, then the first by name. A curve
covers a kernel that it ran if the type's share of its weights is at least half of that in what is
asked for: of a small part of T(N) it tells too little. What is asked for is itself among them only
where the others do not cover it, and then is in sample.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, combinations

from msgspec import Struct

from nearfree.derive.granularity.engine import EngineRules
from nearfree.derive.work_model.engine_fit import (
    PASS,
    SERVED,
    EngineConstants,
    FittedCurve,
    Terms,
    fit_engine,
)
from nearfree.errors import EvidenceError
from nearfree.sources.answers.ggml_cpu import NAMES, UNREAD
from nearfree.sources.answers.ggml_passes import Passes

MOST_CURVES = 3
ENOUGH = 0.5
"""Of a type's share of the weights that are asked for: what a curve must have of it."""
ATTENTION, BETWEEN, FORWARD = "attention", "between products", "a forward"
_CONTEXTS = 2
_PS = 1e-6
"""Microseconds of a picosecond."""
_ASKED = NAMES | UNREAD
"""The flags of a CPU that rules ask for."""


class EngineCurve(Struct, frozen=True, kw_only=True):
    """A measured curve of an engine: what ran, and T(N) in microseconds by N.

    `name` tells curves of a platform apart, `key` is its setting's; `event_id` is its first visit.
    """

    name: str
    key: str
    platform: str
    rules: EngineRules
    baseline: int
    latency_us: dict[int, float]
    event_id: str


class Calibrated(Struct, frozen=True, kw_only=True):
    """Constants with the curves that they were fitted to; `in_sample` if its own is among."""

    constants: EngineConstants
    curves: tuple[EngineCurve, ...]
    in_sample: bool


def kernel_name(kind: str, each: Passes) -> str:
    """Return what a kernel for weights of a type is called."""
    return f"{kind} {each.path} {each.kernel} of {each.holds}"


WHOLE_TILES = ("tiled",)
"""Paths that compute all rows of a tile, those that only fill it up with zeros, too: `n_padded` of
ggml/src/ggml-cpu/tiled/tiled.cpp of llama-cpp-python 0.3.36, line 543."""


def kernels(rules: EngineRules, grid: Iterable[int]) -> set[str]:
    """Return the kernels that forwards over some N run."""
    return {
        kernel_name(each.matrix.type, one)
        for n in grid
        for each in rules.multiplied
        for one in each.product.passes(rules.forward.batch * n)
    }


def terms(rules: EngineRules, n: int) -> Terms:
    """Return what a forward over N has of each constant, so that constant by term is in us."""
    forward = rules.forward
    rows, shape = forward.batch * n, forward.shape
    found: dict[str, float] = {}
    for each in rules.multiplied:
        for one in each.product.passes(rows):
            name = kernel_name(each.matrix.type, one)
            served = one.times * one.holds if one.path in WHOLE_TILES else one.serves
            for what, amount in ((PASS, one.unpacked), (SERVED, served)):
                key = f"{name}: {what}"
                found[key] = found.get(key, 0.0) + _PS * each.elements * amount
    width = shape.heads * shape.head_dim
    found[ATTENTION] = _PS * shape.layers * width * (forward.context + n) * rows
    found[BETWEEN] = _PS * shape.layers * width * rows
    found[FORWARD] = 1.0
    return found


def of_type(rules: EngineRules, constants: EngineConstants, n: int) -> dict[str, float]:
    """Return the microseconds of each type's products in a forward over N, and of the rest."""
    parts: dict[str, float] = {}
    for name, amount in terms(rules, n).items():
        kind = name.split()[0]
        part = f"mul_mat {kind}" if name.endswith((PASS, SERVED)) else name
        parts[part] = parts.get(part, 0.0) + constants.values.get(name, 0.0) * amount
    return parts


def covered(rules: EngineRules, needed: set[str], curve: EngineCurve) -> set[str]:
    """Return the kernels that a forward needs and that a curve ran, by enough of their type."""
    return {
        name
        for name in needed & kernels(curve.rules, curve.latency_us)
        if curve.rules.share(name.split()[0]) >= ENOUGH * rules.share(name.split()[0])
    }


def chosen_curves(
    rules: EngineRules, needed: set[str], curves: Sequence[EngineCurve]
) -> tuple[EngineCurve, ...] | None:
    """Return the curves to fit constants to, None where no three of them cover what is needed.

    Those of which one has a context as long as asked for come first, then those of two contexts,
    then fewer, then the first by name.
    """
    ordered = sorted(curves, key=lambda curve: (curve.name, curve.key))
    known = {curve.key: covered(rules, needed, curve) for curve in ordered}
    useful = [curve for curve in ordered if known[curve.key]]
    sizes = range(1, MOST_CURVES + 1)
    covering = [
        some
        for some in chain.from_iterable(combinations(useful, size) for size in sizes)
        if needed <= set().union(*(known[curve.key] for curve in some))
    ]

    def behind(some: tuple[EngineCurve, ...]) -> tuple[bool, bool, int]:
        contexts = {curve.rules.forward.context for curve in some}
        return max(contexts) < rules.forward.context, len(contexts) < _CONTEXTS, len(some)

    return min(covering, key=behind, default=None)


def calibrated(
    rules: EngineRules,
    grid: Sequence[int],
    platform: str,
    curves: Sequence[EngineCurve],
) -> Calibrated:
    """Return constants for a forward over some N.

    Parameters
    ----------
    curves
        The curves on record, of any platform; those of the very forward among them count last.

    Raises
    ------
    EvidenceError
        There is no curve of the platform, release, features and threads, or of one N alone, or none
        that ran a kernel that is needed; it is named.
    """
    forward = rules.forward
    alike_here = [c for c in curves if c.platform == platform and alike(c.rules, rules)]
    # One N alone says nothing of a ratio, nor of how far it may be off.
    mine = [curve for curve in alike_here if len(curve.latency_us) > 1]
    what = f"{forward.engine} {forward.release} with {_threads(forward.threads)} on {platform}"
    measure = f"`nearfree measure {platform} --engine {forward.engine} --model FILE.gguf`"
    remedy = f"Measure the file there: {measure}, or a study of the module engine with its types"
    if not mine:
        several = " over two N or more" if alike_here else ""
        raise EvidenceError(f"no curve of {what}{several} is on record", remedy=remedy)
    needed = kernels(rules, grid)
    own = {each.key for each in mine if _same(each.rules, rules)}
    others = chosen_curves(rules, needed, [c for c in mine if c.key not in own])
    some = others or chosen_curves(rules, needed, mine)
    if some is None:
        ran = set().union(*(covered(rules, needed, curve) for curve in mine))
        lacking = sorted(needed - ran)
        raise EvidenceError(
            f"no curve of {what} ran enough of {', '.join(lacking)}"
            if lacking
            else f"no {MOST_CURVES} curves of {what} together ran {', '.join(sorted(needed))}",
            remedy=remedy,
        )
    fitted = [
        FittedCurve(
            curve.name,
            curve.latency_us,
            {n: terms(curve.rules, n) for n in curve.latency_us},
            curve.baseline,
        )
        for curve in some
    ]
    return Calibrated(
        constants=fit_engine(fitted),
        curves=some,
        in_sample=any(curve.key in own for curve in some),
    )


def alike(one: EngineRules, other: EngineRules) -> bool:
    """Return whether two forwards share constants: release, threads, and what a library has."""
    a, b = one.forward, other.forward
    if (a.engine, a.release, a.threads) != (b.engine, b.release, b.threads):
        return False
    return one.flags & _ASKED == other.flags & _ASKED


def _same(one: EngineRules, other: EngineRules) -> bool:
    """Return whether two forwards are one: their matrices, shape, batch, context, and order."""
    a, b = one.forward, other.forward
    return (a.batch, a.context, a.repack, a.shape, frozenset(a.matrices)) == (
        b.batch, b.context, b.repack, b.shape, frozenset(b.matrices),
    )  # fmt: skip


def _threads(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"
