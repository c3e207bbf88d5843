"""The resolver: the granularity of one setting over a range, from the rules of a release."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from nearfree.backends.kernels import moe_kernel, unread_kernel_error
from nearfree.backends.moe_kernels import NEVER_TRITON, TRITON
from nearfree.errors import EvidenceError
from nearfree.log.events import Branch, Quote, SourceFetched, TunedIndexed
from nearfree.sources.answers.dense import DenseQuery, DenseRules, Rows
from nearfree.sources.answers.intervals import (
    BackendOrder,
    Evidence,
    Granularity,
    Interval,
    PathInterval,
)
from nearfree.sources.answers.lookup import TunedFiles, nearest
from nearfree.sources.answers.marlin import OTHER_KERNEL_RULES, BlockRowRules
from nearfree.sources.answers.moe import Block, MoeQuery, MoeRules
from nearfree.sources.attention import AttentionQuery, Tile, cache_capacity
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import RULES, reader

MOST_POINTS = 1 << 20
Choice = Block | Tile | Rows
"""A granularity at one number of tokens, positions or rows, and its origin."""
ONE_SCREEN = 30
"""Distance in lines within which a value is shown together with its last condition."""


class Files:
    """The files that rules were read from: the SHA-256 of each, by path."""

    def __init__(self, fetched: Iterable[SourceFetched]) -> None:
        self.hashes = {
            member.path: member.sha256 for source in fetched for member in source.members
        }

    def branch_evidence(self, branch: Branch) -> list[Evidence]:
        """Return the evidence of a branch; the last item holds its value."""
        condition = " and ".join(branch.when) or "always"
        return [self.quote_evidence(quote, condition) for quote in branch.quotes]

    def quote_evidence(self, quote: Quote, condition: str | None = None) -> Evidence:
        """Return the evidence of a quote."""
        return Evidence(
            file=quote.file,
            lines=quote.lines,
            sha256=self.hashes.get(quote.file),
            quote=quote.text,
            condition=condition,
        )


def intervals(
    at: Callable[[int], Choice], first: int, last: int, files: Files
) -> tuple[tuple[PathInterval, ...], tuple[Interval, ...]]:
    """Return paths and granularities over a range of tokens, positions or rows."""
    points = _points(at, first, last)
    paths = (
        PathInterval(
            first=run[0][0],
            last=run[-1][0],
            path=run[0][1].path,
            evidence=tuple(_path_evidence(run[0][1], files)),
        )
        for run in runs(points, lambda choice: choice.path)
    )
    return tuple(paths), tuple(_interval(run, files) for run in runs(points, _shown_values))


def _shown_values(choice: Choice) -> dict[str, Any]:
    """Return the values of a choice's interval, which holds while they are equal."""
    if isinstance(choice, Block):
        return {"value": choice.value, "source": choice.source}
    if isinstance(choice, Rows):
        return {"value": choice.value, "passes": choice.passes, "source": "fixed"}
    return {
        "value": choice.tile // choice.rows_per_position,
        "tile": choice.tile,
        "rows_per_position": choice.rows_per_position,
        "tiles": choice.tiles,
        "source": "fixed",
    }


def _path_evidence(choice: Choice, files: Files) -> Iterable[Evidence]:
    """Return the evidence of a choice's path; the last item of a branch holds its value."""
    if isinstance(choice, Block):
        return files.branch_evidence(choice.path_branch)
    branches = (choice.branch,) if isinstance(choice, Rows) else choice.branches[1:]
    return (files.branch_evidence(branch)[-1] for branch in branches)


def _interval(run: list[tuple[int, Any]], files: Files) -> Interval:
    sources = [_source(choice, number) for number, choice in run]
    value_evidence = _source_evidence(sources[0], files)
    value_item = value_evidence[-1] if value_evidence else None
    evidence = (
        item for source in dict.fromkeys(sources) for item in _source_evidence(source, files)
    )
    return Interval(
        first=run[0][0],
        last=run[-1][0],
        file=value_item.file if value_item else "the caller",
        lines=_shown_lines(value_evidence),
        sha256=value_item.sha256 if value_item else None,
        evidence=tuple(dict.fromkeys(evidence)),
        **_shown_values(run[0][1]),
    )


def _source(choice: Choice, number: int) -> Branch | Evidence | None:
    """Return what gives a value: a rule's branch, a tuned file's entry, or None of an override."""
    if isinstance(choice, Tile):
        return choice.branches[0]
    if isinstance(choice, Block) and choice.tuned is not None:
        return _tuned_evidence(choice.tuned, number)
    return choice.branch


def _source_evidence(source: Branch | Evidence | None, files: Files) -> list[Evidence]:
    if isinstance(source, Branch):
        return files.branch_evidence(source)
    return [] if source is None else [source]


def _shown_lines(evidence: list[Evidence]) -> tuple[int, int] | None:
    """Return the lines from the last condition to the value, if they are in this order and near."""
    if not evidence or evidence[-1].lines is None:
        return None
    start, end = evidence[-1].lines
    if len(evidence) > 1 and evidence[-2].file == evidence[-1].file:
        condition_lines = evidence[-2].lines
        if condition_lines is not None and 0 <= start - condition_lines[0] < ONE_SCREEN:
            start = condition_lines[0]
    return start, end


def _tuned_evidence(tuned: TunedIndexed, tokens: int) -> Evidence:
    index = nearest(tuned.tokens, tokens)
    key = tuned.tokens[index]
    line = tuned.lines[index] if tuned.lines else None
    return Evidence(
        file=tuned.file,
        lines=None if line is None else (line, line),
        sha256=tuned.sha256,
        quote=f'"{key}": BLOCK_SIZE_M {tuned.block_size_m[index]}',
        condition=f"the nearest entry is that of M={key}",
    )


def release_read(extraction: Extraction) -> dict[str, Any]:
    """Return the fields of `ReleaseRead` for a release."""
    source = extraction.fetched[0]
    return {
        "package": extraction.package,
        "version": extraction.version,
        **{name: getattr(source, name) for name in ("artefact", "artefact_sha256", "verified")},
    }


def runs(
    points: list[tuple[int, Any]], key: Callable[[Any], object]
) -> Iterable[list[tuple[int, Any]]]:
    """Yield runs of neighbouring points that share a key."""
    return (list(run) for _, run in groupby(points, lambda point: key(point[1])))


def _points(at: Callable[[int], Any], first: int, last: int) -> list[tuple[int, Any]]:
    if not 1 <= first <= last <= MOST_POINTS:
        raise EvidenceError(
            f"the range {first}:{last} is not within 1:{MOST_POINTS}",
            remedy="Write first:last, both ends included",
        )
    return [(size, at(size)) for size in range(first, last + 1)]


def moe_granularity(extraction: Extraction, query: MoeQuery, first: int, last: int) -> Granularity:
    """Return BLOCK_SIZE_M and path of a MoE layer for each number of tokens.

    If the query names no Triton, the release's pinned one is assumed.

    Raises
    ------
    EvidenceError
        The answer depends on a fact that is not given.
    """
    if query.top_k > query.experts:
        raise EvidenceError(
            f"top_k {query.top_k} is larger than experts {query.experts}",
            remedy="Choose top_k of at most the number of experts",
        )
    files = Files(extraction.fetched)
    query = with_pinned_triton(extraction, query)
    other_rules = _other_kernel_rules(extraction, query)
    if other_rules is not None:
        return _granularity(extraction, *intervals(other_rules.at, first, last, files))
    rules = MoeRules(extraction.by_name(), TunedFiles(extraction.tuned), query, last)
    answer = intervals(rules.at, first, last, files)
    order = None
    if rules.order is not None:
        order = BackendOrder(
            kernels=tuple(rules.order.value),
            evidence=tuple(files.branch_evidence(rules.order.branch)),
        )
    notes = (*rules.notes, *_other_kernel_notes(extraction, query))
    return _granularity(extraction, *answer, order=order, notes=notes)


def with_pinned_triton(extraction: Extraction, query: MoeQuery) -> MoeQuery:
    """Return a query with the Triton that the release pins, if the query names none."""
    pinned = RULES[extraction.package].triton.get(extraction.version)
    return query if query.triton or pinned is None else replace(query, triton=pinned)


def _other_kernel_rules(extraction: Extraction, query: MoeQuery) -> BlockRowRules | None:
    """Return the rules of the named kernel, or of the one that runs the format; None for Triton."""
    kernel = query.kernel
    if kernel is None and query.dtype in NEVER_TRITON:
        if query.sm is None:
            raise EvidenceError(
                f"which kernel runs {query.dtype} depends on the compute capability",
                remedy="Name the device with --device, or give --sm",
            )
        kernel = moe_kernel(extraction.package, extraction.version, query.dtype, query.sm)
        if kernel not in OTHER_KERNEL_RULES:
            raise unread_kernel_error(
                extraction.package, extraction.version, query.dtype, query.sm, kernel
            )
    if kernel is None:
        return None
    if kernel not in OTHER_KERNEL_RULES:
        raise EvidenceError(
            f"no blocks of {kernel} for MoE layers are read",
            remedy=f"Choose --kernel from {', '.join(OTHER_KERNEL_RULES)}",
        )
    return BlockRowRules(extraction.by_name(), query, kernel)


def _other_kernel_notes(extraction: Extraction, query: MoeQuery) -> tuple[str, ...]:
    """Return a note if the release runs another kernel than Triton's on this device, else none.

    There is no note if the compute capability is unknown or the caller sets the block.
    """
    if query.sm is None or query.override is not None:
        return ()
    try:
        kernel = moe_kernel(extraction.package, extraction.version, query.dtype, query.sm)
    except EvidenceError as error:
        return (error.what,)
    if kernel == TRITON:
        return ()
    release = f"{extraction.package} {extraction.version}"
    other_kernel = f"{release} runs {kernel} for {query.dtype} on this device"
    return (f"{other_kernel}: these blocks are those of Triton's kernel",)


def attention_granularity(
    extraction: Extraction, query: AttentionQuery, first: int, last: int
) -> Granularity:
    """Return tile and path of an attention call for each number of positions.

    The query's `context` counts the tokens cached before the call: the positions' own keys are
    added, and the sum is rounded up to whole pages.

    Raises
    ------
    EvidenceError
        The answer depends on a fact that is not given, or the backend refuses the setting.
    """
    if query.heads % query.kv_heads:
        raise EvidenceError(
            f"{query.heads} heads cannot share {query.kv_heads} key-value heads evenly",
            remedy="Choose a number of heads that is a multiple",
        )
    rules, module = extraction.by_name(), reader(extraction.package)
    if query.window is not None and not getattr(module, "WINDOWS", False):
        raise EvidenceError(
            f"{extraction.package} {extraction.version}: tiles of calls with a window are not read",
            remedy="Ask without --window, or about flash-attn, vllm-fa3, vllm-triton or"
            " flashinfer-python",
        )

    def at(positions: int) -> Tile:
        keys = cache_capacity(query.context + positions, query.page_size)
        return module.tile(rules, replace(query, context=keys), positions)

    notes = module.notes(query) if hasattr(module, "notes") else ()
    answer = intervals(at, first, last, Files(extraction.fetched))
    return _granularity(extraction, *answer, notes=notes)


def dense_granularity(
    extraction: Extraction, query: DenseQuery, first: int, last: int
) -> Granularity:
    """Return the kernel of a dense product and its tile rows for each number of rows.

    Raises
    ------
    EvidenceError
        The kernel that runs, or its tile rows, are unknown.
    """
    rules = DenseRules(extraction.by_name(), extraction.version, query)
    return _granularity(extraction, *intervals(rules.at, first, last, Files(extraction.fetched)))


def _granularity(
    extraction: Extraction,
    paths: tuple[PathInterval, ...],
    granularities: tuple[Interval, ...],
    *,
    order: BackendOrder | None = None,
    notes: tuple[str, ...] = (),
) -> Granularity:
    if extraction.fetched[0].verified == "stand_in":
        from nearfree.sources.fetching.fork import STANDS_IN

        notes = (*notes, STANDS_IN)
    return Granularity(
        **release_read(extraction),
        kernel_path=paths,
        intervals=granularities,
        backend_order=order,
        notes=notes,
    )
