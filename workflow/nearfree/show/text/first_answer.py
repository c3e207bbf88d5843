"""The answer of `nearfree predict`: N_max, its limiter, T(1), memory and the evidence.

They need no knowledge of the paper; `--all` prints everything else.
"""

import math
import re
from collections.abc import Iterator

from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.core.modules.registry import KINDS
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.first_answer import Basis, FirstAnswer, Limiter
from nearfree.derive.reference.regimes import R0, R1, R2, R3
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.launches import LAUNCH_US
from nearfree.show.text.forecast import formats, gpus, no_forward, window
from nearfree.show.text.memory import memory_lines, unfit, with_memory
from nearfree.units import US_PER_MS

WORDS = {
    **{family.limit.term: family.limit.plain for family in FAMILIES.values()},
    "active experts": "more positions activate more experts, whose weights are read",
    "BLOCK_SIZE_M": "the kernel switches to blocks of more tokens",
    "query tile": "the attention kernel takes a larger tile of queries",
    "query heads packed": "heads that share keys no longer share a tile",
    "passes over the weights": "the kernel reads the weights more often",
    "rows of a tile": "the kernel switches to a tile of more rows",
    "all-reduce": "the all-reduce switches to another algorithm",
    "graph of": "the engine pads the step to its next CUDA graph",
    "no graph of": "no CUDA graph holds the step, and the GPU waits for its launches",
}
"""The explanation of a limiting term, by the term or its first words."""
REGIMES = {
    R0: "constants of other GPUs or formats, since no curve of this kernel on this GPU is known",
    R1: "curves of this kernel on a sibling of this GPU",
    R2: "curves of this kernel in other shapes on this GPU",
    R3: "this kernel's curve in this shape on this GPU",
}
"""The evidence of a module's T(N), by its regime."""
_AT_ONE = "curves of this kernel at N = 1, on this GPU or a sibling; constants for N > 1"
"""The evidence where a kernel was measured at one position only."""
PRODUCTS = {
    R1: "curves of dense products, by {}, on a sibling of this GPU",
    R2: "curves of dense products in other shapes, by {}, on this GPU",
    R3: "the curve of this dense product, by {}, on this GPU",
}
"""The evidence of a dense product, with its library: curves of several libraries are pooled."""
_CHANGES = re.compile(r"->|\d")
"""Matches a term that has numbers or a change: it is printed behind its explanation."""
_SPREAD = {
    "balanced": "tokens spread evenly over experts",
    "skewed": "all tokens on the same experts",
}


_LONG_MS = 999.5
"""From this number of ms on, three significant digits would print an exponent."""


def heading(query: Deployment, *, assumed: bool = False) -> str:
    """Return one line that describes the deployment; `assumed` marks a default attention."""
    note = " (assumed: --attention names another)" if assumed else ""
    kernel = BY_PUBLIC_NAME.get(query.library or "")
    experts = f"{query.moe} ({kernel})" if kernel else query.library or query.moe
    moe_text = f"experts by {experts}, " if query.moe else ""
    routing_text = _SPREAD.get(query.routing or "", f"{query.routing} routing") if query.moe else ""
    parts = [
        f"{query.decoder.name} on {gpus(query)}",
        formats(query),
        f"batch {query.batch}",
        f"context {query.context}{window(query)}",
        f"attention by {query.attention}{note}",
        *([f"{moe_text}{routing_text}"] if query.moe else []),
        *([f"served by {query.server}"] if query.server else []),
        *([f"dense products by {query.dense}"] if query.dense else []),
        *([f"CUDA graphs of {query.graphs.engine}"] if query.graphs else []),
    ]
    return ", ".join(parts)


def first_block(
    query: Deployment,
    answer: FirstAnswer,
    accepted: float | None = None,
    *,
    end: int,
    assumed: bool = False,
) -> Iterator[str]:
    """Yield the lines; that of memory comes first where the deployment does not fit.

    Parameters
    ----------
    accepted
        Measured tokens per forward.
    end
        The largest N of the grid: an N_max of this value is a lower bound.
    assumed
        Whether the attention backend is a default.
    """
    memory = _memory(query)
    if unfit(query.memory):
        yield memory
    yield heading(query, assumed=assumed)
    yield _n_max(answer, accepted, end)
    yield _limit(answer)
    yield "; ".join([_times(answer), *answer.doubts, *query.caveats])
    if not unfit(query.memory):
        yield memory
    yield from _evidence(query, answer)


def unknown_block(query: Deployment, reason: str) -> Iterator[str]:
    """Yield the description, the memory and the refusal of a deployment whose T(N) is unknown."""
    yield from with_memory(heading(query), query.memory, [_memory(query)])
    yield f"T(N) is not known: {reason}. {no_forward(query)}"


def _memory(query: Deployment) -> str:
    return "; ".join(map(str.strip, memory_lines(query.memory, query.platform)))


def _n_max(answer: FirstAnswer, accepted: float | None, end: int) -> str:
    limit, n_max = f"{1 + answer.epsilon:g} times", answer.n_max
    value, low, high = (
        f"at least {n}" if n == end else f"{n}" for n in (n_max, answer.low, answer.high)
    )
    if end == 1:
        verdict = "no further position was looked at"
    elif n_max == 1:
        verdict = (
            f"2 positions per forward take more than {limit} as long as one: no draft is "
            "near-free; `nearfree schedule` says at which acceptance one pays"
        )
    else:
        drafts = "1 draft" if n_max == 2 else f"{n_max - 1} drafts"
        verdict = f"{n_max} positions per forward ({drafts}) take at most {limit} as long as one"
        if answer.above:
            first, last, ratio = answer.above
            some = f"{first}" if first == last else f"some of {first} to {last}"
            verdict += f", though {some} take up to {ratio:.2f} times"
    sign = "at most " if n_max == end else ""
    share = f"; accepted / N_max {sign}{accepted / n_max:.2f}" if accepted else ""
    both = f"{low} to {high}" if low != high else "the same" if low == value else low
    interval = f"{both} if all modules err in the same direction"
    return f"N_max {value} ({interval}): {verdict}{share}"


def _limit(answer: FirstAnswer) -> str:
    limiter = answer.limiter
    if limiter is None:
        return f"limited by nothing up to {answer.n_max} position{'s' if answer.n_max > 1 else ''}"
    module = f"{limiter.module} ({limiter.share:.0%} of the time of one position)"
    return f"limited by {module}: {plain(limiter.term)}{_place(limiter)}"


def plain(term: str) -> str:
    """Return a limiting term in plain words, followed by the term itself where it has numbers."""
    prefix = next((prefix for prefix in WORDS if term.startswith(prefix)), None)
    if prefix is None:
        return term
    return f"{WORDS[prefix]} ({term})" if _CHANGES.search(term) else WORDS[prefix]


def _place(limiter: Limiter) -> str:
    rule = limiter.rule
    if rule is None:
        return ""
    first, last = rule.lines
    lines = f"{first}" if first == last else f"{first}-{last}"
    return f"; {rule.package} {rule.version}, {rule.file}:{lines}"


def _times(answer: FirstAnswer) -> str:
    t1_ms = answer.t1_us / US_PER_MS
    band = ""
    if answer.t1_band is not None:
        low, high = (_ms(t1_ms * math.exp(sign * answer.t1_band)) for sign in (-1, 1))
        band = f" (80% interval {low} to {high})"
    costs = ", ".join(f"T({n}) {ratio:.2f}" for n, ratio in answer.cost.items())
    text = f"T(1), the time of one position, {_ms(t1_ms)} ms{band}"
    text += f"; in units of T(1): {costs}" if costs else ""
    if answer.eager is None or answer.eager > max(answer.n_max, *answer.cost, 1):
        return text
    start = f"from {answer.eager} positions on" if answer.eager > 1 else "even for one position"
    return (
        f"{text}; {start} no CUDA graph is large enough, and a step takes at least "
        f"{LAUNCH_US:g} us for each kernel that it launches"
    )


def _ms(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".") if value < _LONG_MS else f"{value:.0f}"


def _evidence(query: Deployment, answer: FirstAnswer) -> Iterator[str]:
    """Yield the evidence of an answer, a line for each share of T(1), the largest share first."""
    yield (
        "evidence, by share of T(1), and how often N_max was exact or within a factor of 2 (x2) "
        "where public curves were predicted from such evidence:"
    )
    yield from map(_basis, sorted(answer.bases, key=lambda basis: -basis.share))
    if answer.besides:
        steps = f"published steps of {query.engine.name} (kernels between modules, host)"
        yield f"  {answer.besides:.0%} {steps}"


def _basis(basis: Basis) -> str:
    """Return the evidence of one share of T(1), with its scores."""
    kind, _, rest = (basis.scored_on or "").partition(" ")
    words = REGIMES | PRODUCTS if kind == "gemm" else REGIMES
    library = basis.kernels[0] if len(basis.kernels) == 1 else "any library"
    source = _AT_ONE if basis.at_one_position else words[basis.regime].format(library)
    text = f"  {basis.share:.0%} {source} (mostly {basis.module})"
    if basis.hit is None or basis.within_x2 is None:
        return f"{text}: not tested"
    weaker = "" if basis.scored_as == basis.regime else "tested on weaker evidence, "
    curves = f"{basis.settings:,} curves of {KINDS[kind].plural} in {rest}"
    return f"{text}: {weaker}exact {basis.hit:.0%}, x2 {basis.within_x2:.0%} of {curves}"
