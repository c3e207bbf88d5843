"""The answer to act on, in six lines and in words that need no paper: what `nearfree predict` says.

All else that is known of a deployment is behind `--all`.
"""

import math
import re
from collections.abc import Iterator

from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.first_answer import Basis, FirstAnswer, Limiter
from nearfree.derive.reference.regimes import R0, R1, R2, R3
from nearfree.derive.work_model.launches import LAUNCH_US
from nearfree.show.text.forecast import formats, gpus, no_forward, window
from nearfree.show.text.memory import memory_lines, unfit

WORDS = {
    "compute of padded rows": "the products' arithmetic takes longer than reading their weights",
    "padded expert blocks": "the experts' blocks, filled up with padding, take longer than reading "
    "their weights",
    "waves of query tiles": "one more wave of query tiles over the GPU's processors",
    "padded query tiles": "one more tile of queries reads the whole cache",
    "tiles of heads": "one more tile of heads reads the whole cache",
    "waves of positions": "each position reads the tokens that were selected for it",
    "projections, indexer": "projections, indexer and selected tokens outgrow the launches",
    "numbers over all entries": "the indexer scores every cached token for each position",
    "states that are written": "each position writes a state of its own for every request",
    "rows that enter": "each position brings a row, which is convolved, kept and handed on",
    "residual streams": "each position reads and writes several residual streams",
    "a pass over all numbers": "the selection reads every score for each position",
    "bytes between GPUs": "the bytes that GPUs send each other",
    "active experts": "more positions wake more experts, whose weights are read",
    "BLOCK_SIZE_M": "the kernel goes over to blocks of more tokens",
    "query tile": "the attention kernel takes a larger tile of queries",
    "query heads packed": "heads that share keys no longer share a tile",
    "passes over the weights": "the kernel reads the weights more often",
    "rows of a tile": "the kernel goes over to a tile of more rows",
    "all-reduce": "the all-reduce goes over to another algorithm",
    "graph of": "the engine pads the step to its next CUDA graph",
    "no graph of": "no CUDA graph holds the step, and the GPU waits for its launches",
}
"""What a limit is in plain words, by how its term begins."""
REGIMES = {
    R0: "constants of other GPUs or formats, as no such kernel was measured on this one",
    R1: "curves of this kernel on a sibling of this GPU",
    R2: "curves of this kernel's other shapes on this GPU",
    R3: "this kernel's own curve on this GPU",
}
"""What a regime is in plain words."""
_AT_ONE = "curves of one position by this kernel, on this GPU or a sibling, and constants for more"
"""The same where a kernel was measured at one position alone."""
PRODUCTS = {
    R1: "curves of such products, by {}, on a sibling of this GPU",
    R2: "curves of such products' other shapes, by {}, on this GPU",
    R3: "this product's own curve, by {}, on this GPU",
}
"""The same of dense products, with what ran them: curves of several libraries stand together."""
KINDS = {
    "gemm": "products",
    "moe_ffn": "MoE layers",
    "mla": "latent attention",
    "attention_layer": "attention layers",
    "delta_net": "gated delta nets",
    "mamba2": "Mamba-2 states",
    "short_conv": "short convolutions",
    "stream_mixing": "mixed residual streams",
}
"""Kinds of modules whose curves were scored, where their names are not plain."""
_CHANGES = re.compile(r"->|\d")
"""What a term says with numbers or names, which are kept."""
_SPREAD = {
    "balanced": "tokens spread evenly over experts",
    "skewed": "all tokens on the same experts",
}


_LONG_MS = 999.5
"""From here on three digits would have an exponent."""


def heading(query: Deployment, *, assumed: bool = False) -> str:
    """Return one line that says what is answered about; `assumed` where nobody named attention."""
    named = " (assumed: --attention names another)" if assumed else ""
    kernel = BY_PUBLIC_NAME.get(query.library or "")
    experts = f"{query.moe} ({kernel})" if kernel else query.library or query.moe
    moe = f"experts by {experts}, " if query.moe else ""
    spread = _SPREAD.get(query.routing or "", f"{query.routing} routing") if query.moe else ""
    parts = [
        f"{query.decoder.name} on {gpus(query)}",
        formats(query),
        f"batch {query.batch}",
        f"context {query.context}{window(query)}",
        f"attention by {query.attention}{named}",
        *([f"{moe}{spread}"] if query.moe else []),
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
    """Yield the six lines; the first says so where the deployment does not fit in memory.

    Parameters
    ----------
    accepted
        Tokens that a forward yields, as measured.
    end
        The largest N that was looked at: an N_max there may be larger.
    assumed
        Whether nobody named what runs attention.
    """
    memory = "; ".join(map(str.strip, memory_lines(query.memory, query.platform)))
    if unfit(query.memory):
        yield memory
    yield heading(query, assumed=assumed)
    yield _n_max(answer, accepted, end)
    yield _limit(answer)
    yield "; ".join([_times(answer), *query.caveats])
    if not unfit(query.memory):
        yield memory
    yield _stands(query, answer)


def unknown_block(query: Deployment, reason: str) -> Iterator[str]:
    """Yield what is known of a deployment whose T(N) is not."""
    memory = "; ".join(map(str.strip, memory_lines(query.memory, query.platform)))
    yield from (memory, heading(query)) if unfit(query.memory) else (heading(query), memory)
    yield f"T(N) is not known: {reason}. {no_forward(query)}"


def _n_max(answer: FirstAnswer, accepted: float | None, end: int) -> str:
    limit, n = f"{1 + answer.epsilon:g} times", answer.n_max
    found, low, high = (
        f"at least {each}" if each == end else f"{each}" for each in (n, answer.low, answer.high)
    )
    if end == 1:
        said = "no further position was looked at"
    elif n == 1:
        said = (
            f"2 positions a forward take more than {limit} as long as one: no draft is near-free, "
            "and whether one pays is what `nearfree schedule` says by acceptance"
        )
    else:
        drafts = "1 draft" if n == 2 else f"{n - 1} drafts"
        said = f"{n} positions a forward ({drafts}) take at most {limit} as long as one"
    most = "at most " if n == end else ""
    share = f"; accepted / N_max {most}{accepted / n:.2f}" if accepted else ""
    return f"N_max {found} ({low} to {high} if all parts err one way): {said}{share}"


def _limit(answer: FirstAnswer) -> str:
    limiter = answer.limiter
    if limiter is None:
        return f"limited by nothing up to {answer.n_max} position{'s' if answer.n_max > 1 else ''}"
    module = f"{limiter.module} ({limiter.share:.0%} of the time of one position)"
    return f"limited by {module}: {plain(limiter.term)}{_place(limiter)}"


def plain(term: str) -> str:
    """Return a limiting term in plain words, with its numbers."""
    begin = next((each for each in WORDS if term.startswith(each)), None)
    if begin is None:
        return term
    return f"{WORDS[begin]} ({term})" if _CHANGES.search(term) else WORDS[begin]


def _place(limiter: Limiter) -> str:
    rule = limiter.rule
    if rule is None:
        return ""
    first, last = rule.lines
    lines = f"{first}" if first == last else f"{first}-{last}"
    return f"; {rule.package} {rule.version}, {rule.file}:{lines}"


def _times(answer: FirstAnswer) -> str:
    first = answer.t1_us / 1e3
    band = ""
    if answer.t1_band is not None:
        low, high = (_ms(first * math.exp(way * answer.t1_band)) for way in (-1, 1))
        band = f" ({low} to {high} in four cases of five)"
    costs = ", ".join(f"T({n}) {ratio:.2f}" for n, ratio in answer.cost.items())
    said = f"T(1), the time of one position, {_ms(first)} ms{band}"
    said += f"; in units of T(1): {costs}" if costs else ""
    if answer.eager is None or answer.eager > max(answer.n_max, *answer.cost, 1):
        return said
    where = f"from {answer.eager} positions on" if answer.eager > 1 else "even for one position"
    return (
        f"{said}; {where} no CUDA graph is large enough, and a step takes at least "
        f"{LAUNCH_US:g} us for each kernel that it launches"
    )


def _ms(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".") if value < _LONG_MS else f"{value:.0f}"


def _stands(query: Deployment, answer: FirstAnswer) -> str:
    """Return on what an answer stands, by what takes most of T(1)."""
    bases = sorted(answer.bases, key=lambda each: -each.share)
    scored = next((each for each in bases if each.hit is not None), None)
    parts = [_stand(each, whole=each is scored) for each in bases]
    if answer.besides:
        engine = query.engine.name
        parts.append(
            f"{answer.besides:.0%} published steps of {engine} (kernels between modules, host)"
        )
    return f"stands on these shares of T(1): {'; '.join(parts)}"


def _stand(basis: Basis, *, whole: bool) -> str:
    """Return one part of a basis; `whole` where it says what its numbers are."""
    kind, _, rest = (basis.scored_on or "").partition(" ")
    words = REGIMES | PRODUCTS if kind == "gemm" else REGIMES
    library = basis.kernels[0] if len(basis.kernels) == 1 else "any library"
    stood = _AT_ONE if basis.at_one_position else words[basis.regime].format(library)
    said = f"{basis.share:.0%} {stood} (most of it {basis.module}"
    if basis.hit is None or basis.within_x2 is None:
        return f"{said}; not scored)"
    curves = f"{basis.settings:,} public curves of {KINDS.get(kind, kind)} in {rest}"
    hit, near = f"{basis.hit:.0%}", f"{basis.within_x2:.0%}"
    less = basis.scored_as != basis.regime
    if not whole:
        return f"{said}; {'knowing less ' if less else ''}{hit} and {near} of {curves})"
    how = "predicted knowing less" if less else "so predicted"
    return f"{said}; N_max {how} was exact in {hit}, within a factor of 2 in {near} of {curves})"
