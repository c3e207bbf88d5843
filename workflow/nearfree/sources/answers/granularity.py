"""The resolver: granularity of one setting over a range, from what a release says."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from nearfree.backends.kernels import moe_kernel, unread
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
from nearfree.sources.answers.marlin import BESIDE_TRITON, RowsOfBlocks
from nearfree.sources.answers.moe import Block, MoeQuery, MoeRules
from nearfree.sources.attention import AttentionQuery, Tile, room
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import RULES, reader

MOST_POINTS = 1 << 20
ONE_SCREEN = 30
"""Lines within which a value is shown together with its last condition."""


class Files:
    """The files that rules were read from, by path."""

    def __init__(self, fetched: Iterable[SourceFetched]) -> None:
        self.hashes = {member.path: member.sha256 for f in fetched for member in f.members}

    def quoted(self, branch: Branch) -> list[Evidence]:
        """Return a branch's places; the last one holds its value."""
        condition = " and ".join(branch.when) or "always"
        return [self.place(quote, condition) for quote in branch.quotes]

    def place(self, quote: Quote, condition: str | None = None) -> Evidence:
        """Return a quoted place."""
        return Evidence(
            file=quote.file,
            lines=quote.lines,
            sha256=self.hashes.get(quote.file),
            quote=quote.text,
            condition=condition,
        )


def moe_intervals(
    at: Callable[[int], Block], first: int, last: int, files: Files
) -> tuple[tuple[PathInterval, ...], tuple[Interval, ...]]:
    """Return paths and block sizes over a range of tokens."""
    blocks = _points(at, first, last)
    return _path_intervals(blocks, lambda block: files.quoted(block.path_branch)), tuple(
        _moe_interval(run, files) for run in runs(blocks, lambda block: (block.value, block.source))
    )


def _moe_interval(run: list[tuple[int, Block]], files: Files) -> Interval:
    places = tuple(dict.fromkeys(place for n, block in run for place in _quoted(block, n, files)))
    block = run[0][1]
    first = _quoted(block, run[0][0], files)
    head = first[-1] if first else None
    return Interval(
        first=run[0][0],
        last=run[-1][0],
        value=block.value,
        source=block.source,
        file=head.file if head else "the caller",
        lines=_span(first),
        sha256=head.sha256 if head else None,
        evidence=places,
    )


def _span(places: list[Evidence]) -> tuple[int, int] | None:
    """Return the lines from the last condition to the value, where they stand in this order."""
    if not places or places[-1].lines is None:
        return None
    first, last = places[-1].lines
    if len(places) > 1 and places[-2].file == places[-1].file:
        before = places[-2].lines
        if before is not None and 0 <= first - before[0] < ONE_SCREEN:
            first = before[0]
    return first, last


def _quoted(block: Block, tokens: int, files: Files) -> list[Evidence]:
    if block.tuned is not None:
        return [_tuned_place(block.tuned, tokens)]
    return [] if block.branch is None else files.quoted(block.branch)


def _tuned_place(tuned: TunedIndexed, tokens: int) -> Evidence:
    number = nearest(tuned.tokens, tokens)
    key = tuned.tokens[number]
    line = tuned.lines[number] if tuned.lines else None
    return Evidence(
        file=tuned.file,
        lines=None if line is None else (line, line),
        sha256=tuned.sha256,
        quote=f'"{key}": BLOCK_SIZE_M {tuned.block_size_m[number]}',
        condition=f"the nearest entry is that of M={key}",
    )


def attention_intervals(
    at: Callable[[int], Tile], first: int, last: int, files: Files
) -> tuple[tuple[PathInterval, ...], tuple[Interval, ...]]:
    """Return paths and tiles over a range of positions."""
    tiles = _points(at, first, last)
    return _path_intervals(
        tiles, lambda tile: (e for b in tile.branches[1:] for e in files.quoted(b)[-1:])
    ), tuple(
        _attention_interval(run, files)
        for run in runs(tiles, lambda t: (t.tile, t.rows_per_position, t.tiles))
    )


def _attention_interval(run: list[tuple[int, Tile]], files: Files) -> Interval:
    tile = run[0][1]
    return replace(
        _fixed(run, [each.branches[0] for _, each in run], files),
        value=tile.tile // tile.rows_per_position,
        tile=tile.tile,
        rows_per_position=tile.rows_per_position,
        tiles=tile.tiles,
    )


def _fixed(run: list[tuple[int, Any]], branches: list[Branch], files: Files) -> Interval:
    """Return what a source fixes over a run of points, by the branch of each, without its value."""
    first = files.quoted(branches[0])
    places = dict.fromkeys(e for each in dict.fromkeys(branches) for e in files.quoted(each))
    return Interval(
        first=run[0][0],
        last=run[-1][0],
        value=0,
        source="fixed",
        file=first[-1].file,
        lines=_span(first),
        sha256=first[-1].sha256,
        evidence=tuple(places),
    )


def dense_intervals(
    at: Callable[[int], Rows], first: int, last: int, files: Files
) -> tuple[tuple[PathInterval, ...], tuple[Interval, ...]]:
    """Return kernels and rows of a tile over a range of rows."""
    points = _points(at, first, last)
    return _path_intervals(points, lambda rows: files.quoted(rows.branch)[-1:]), tuple(
        _dense_interval(run, files) for run in runs(points, lambda rows: (rows.value, rows.passes))
    )


def _dense_interval(run: list[tuple[int, Rows]], files: Files) -> Interval:
    rows = run[0][1]
    fixed = _fixed(run, [each.branch for _, each in run], files)
    return replace(fixed, value=rows.value, passes=rows.passes)


def runs(
    points: list[tuple[int, Any]], key: Callable[[Any], object]
) -> Iterable[list[tuple[int, Any]]]:
    """Yield neighbouring points that share a key."""
    return (list(run) for _, run in groupby(points, lambda point: key(point[1])))


def _path_intervals(
    points: list[tuple[int, Any]], evidence: Callable[[Any], Iterable[Evidence]]
) -> tuple[PathInterval, ...]:
    return tuple(
        PathInterval(
            first=run[0][0],
            last=run[-1][0],
            path=run[0][1].path,
            evidence=tuple(evidence(run[0][1])),
        )
        for run in runs(points, lambda point: point.path)
    )


def _points(at: Callable[[int], Any], first: int, last: int) -> list[tuple[int, Any]]:
    if not 1 <= first <= last <= MOST_POINTS:
        raise EvidenceError(
            f"the range {first}:{last} is not within 1:{MOST_POINTS}",
            remedy="Write first:last, both ends included",
        )
    return [(n, at(n)) for n in range(first, last + 1)]


def moe_granularity(found: Extraction, query: MoeQuery, first: int, last: int) -> Granularity:
    """Return BLOCK_SIZE_M and path of a MoE layer for each number of tokens.

    The running Triton is the one that the release pins, where the question names none.

    Raises
    ------
    EvidenceError
        The answer depends on a fact that is not given.
    """
    if query.top_k > query.experts:
        raise EvidenceError(
            f"top_k {query.top_k} is larger than experts {query.experts}",
            remedy="Choose at most as many experts a token as there are",
        )
    files = Files(found.fetched)
    query = with_pinned(found, query)
    other = _beside_triton(found, query)
    if other is not None:
        return _answer(found, *moe_intervals(other.at, first, last, files))
    rules = MoeRules(found.by_name(), TunedFiles(found.tuned), query, last)
    paths, intervals = moe_intervals(rules.at, first, last, files)
    order = None
    if rules.order is not None:
        order = BackendOrder(
            kernels=tuple(rules.order.value), evidence=tuple(files.quoted(rules.order.branch))
        )
    notes = (*rules.notes, *_other_kernel(found, query))
    return _answer(found, paths, intervals, order=order, notes=notes)


def with_pinned(found: Extraction, query: MoeQuery) -> MoeQuery:
    """Return a question with the Triton that a release pins, if it names none and one is read."""
    pinned = RULES[found.package].triton.get(found.version)
    return query if query.triton or pinned is None else replace(query, triton=pinned)


def _beside_triton(found: Extraction, query: MoeQuery) -> RowsOfBlocks | None:
    """Return the blocks of the kernel that is named, or that a format of its own runs."""
    kernel = query.kernel
    if kernel is None and query.dtype in NEVER_TRITON:
        if query.sm is None:
            raise EvidenceError(
                f"which kernel runs {query.dtype} depends on the compute capability",
                remedy="Name the device with --device, or give --sm",
            )
        kernel = moe_kernel(found.package, found.version, query.dtype, query.sm)
        if kernel not in BESIDE_TRITON:
            raise unread(found.package, found.version, query.dtype, query.sm, kernel)
    if kernel is None:
        return None
    if kernel not in BESIDE_TRITON:
        raise EvidenceError(
            f"no blocks of {kernel} for MoE layers are read",
            remedy=f"Choose --kernel from {', '.join(BESIDE_TRITON)}",
        )
    return BESIDE_TRITON[kernel](found.by_name(), query)


def _other_kernel(found: Extraction, query: MoeQuery) -> tuple[str, ...]:
    """Return why a release does not run the Triton kernel whose blocks these are; none if it does.

    It is asked of a device whose compute capability is known, where the caller sets no block.
    """
    if query.sm is None or query.override is not None:
        return ()
    try:
        kernel = moe_kernel(found.package, found.version, query.dtype, query.sm)
    except EvidenceError as error:
        return (error.what,)
    if kernel == TRITON:
        return ()
    runs = f"{found.package} {found.version} runs {kernel} for {query.dtype} on this device"
    return (f"{runs}: these blocks are those of Triton's kernel",)


def attention_granularity(
    found: Extraction, query: AttentionQuery, first: int, last: int
) -> Granularity:
    """Return tile and path of an attention call for each number of positions.

    The query's `context` is what is cached before: the positions' own keys come on top, and pages
    are whole.

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
    rules, module = found.by_name(), reader(found.package)
    if query.window is not None and not getattr(module, "WINDOWS", False):
        raise EvidenceError(
            f"{found.package} {found.version}: tiles of calls with a window are not read",
            remedy="Ask without --window, or about flash-attn, vllm-fa3, vllm-triton or"
            " flashinfer-python",
        )

    def at(n: int) -> Tile:
        keys = room(query.context + n, query.page_size)
        return module.tile(rules, replace(query, context=keys), n)

    paths, intervals = attention_intervals(at, first, last, Files(found.fetched))
    notes = module.notes(query) if hasattr(module, "notes") else ()
    return _answer(found, paths, intervals, notes=notes)


def dense_granularity(found: Extraction, query: DenseQuery, first: int, last: int) -> Granularity:
    """Return the kernel of a dense product and its rows of a tile for each number of rows.

    Raises
    ------
    EvidenceError
        Which kernel runs is not read, or no rows of it are.
    """
    rules = DenseRules(found.by_name(), found.version, query)
    paths, intervals = dense_intervals(rules.at, first, last, Files(found.fetched))
    return _answer(found, paths, intervals)


def _answer(
    found: Extraction,
    paths: tuple[PathInterval, ...],
    intervals: tuple[Interval, ...],
    *,
    order: BackendOrder | None = None,
    notes: tuple[str, ...] = (),
) -> Granularity:
    source = found.fetched[0]
    if source.verified == "stand_in":
        from nearfree.sources.fetching.fork import STANDS_IN

        notes = (*notes, STANDS_IN)
    return Granularity(
        package=found.package,
        version=found.version,
        artefact=source.artefact,
        artefact_sha256=source.artefact_sha256,
        verified=source.verified,
        kernel_path=paths,
        intervals=intervals,
        backend_order=order,
        notes=notes,
    )
