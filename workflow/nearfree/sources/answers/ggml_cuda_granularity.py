"""The answer for a matrix on an NVIDIA GPU over a range of rows, with its evidence."""

import re

from msgspec import Struct

from nearfree.sources.answers.ggml_cuda import CudaProduct, CudaQuery
from nearfree.sources.answers.ggml_granularity import CitedRule, cited_rule
from nearfree.sources.answers.granularity import Files, release_read, runs
from nearfree.sources.answers.intervals import Evidence, ReleaseRead
from nearfree.sources.extraction import Extraction

_LIMIT = re.compile(r"\b(?:ne11|ne2|src1_ncols) *(?:<|>|<=|==) *\w")
"""A comparison of a number of columns that chooses a kernel, in ggml's text."""
FUSION = "mechanism_fusion"
"""The rule that says which products are one kernel."""
_ASSUMED = "assumed: the library is compiled for this compute capability, with ggml's own options"


class KernelInterval(Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """A range of rows with one kind of launch; the numbers are those of its last, as `Launch`'s."""

    first: int
    last: int
    path: str
    holds: int | None
    passes: int | None
    per: str
    rules: tuple[CitedRule, ...]


class CudaGranularity(ReleaseRead, frozen=True, kw_only=True):
    """How a release divides the rows of one matrix, or of experts', into kernels and passes."""

    type: str
    columns: int
    depth: int
    routed: bool
    sm: int
    intervals: tuple[KernelInterval, ...]
    notes: tuple[str, ...] = ()


def cuda_granularity(
    extraction: Extraction,
    query: CudaQuery,
    first: int,
    last: int,
    *,
    notes: tuple[str, ...] = (),
) -> CudaGranularity:
    """Return the kernels of a matrix from `first` to `last` rows; `notes` are assumptions.

    Raises
    ------
    ConfigError
        The rules of the weights' type are not read, or the depth is no multiple of its blocks.
    EvidenceError
        A rule is missing, or the rules for the GPU are not read.
    """
    product = CudaProduct(extraction, query)
    files = Files(extraction.fetched)
    points = [(rows, product.launch(rows)) for rows in range(first, last + 1)]
    intervals = (
        KernelInterval(
            first=run[0][0],
            last=run[-1][0],
            path=launch.path,
            holds=launch.holds,
            passes=launch.passes,
            per=launch.per,
            rules=tuple(cited_rule(place, files, deciding) for place in reversed(launch.places)),
        )
        for run in runs(points, lambda launch: launch.kind())
        for launch in (run[-1][1],)
    )
    return CudaGranularity(
        **release_read(extraction),
        type=query.weight.lower(),
        columns=query.columns,
        depth=query.depth,
        routed=query.routed,
        sm=query.sm,
        intervals=tuple(intervals),
        notes=(*notes, *_fusion(product), _ASSUMED),
    )


def _fusion(product: CudaProduct) -> tuple[str, ...]:
    """Return what the release fuses, if it is on record: that rule's words."""
    rule = product.rules.get(FUSION)
    return () if rule is None else (f"{rule.value({}).value} ({FUSION})",)


def deciding(quoted: list[Evidence]) -> Evidence:
    """Return the last line by which a number of columns chooses, else the lines of the value.

    Of a value in several parts that are all of its lines, which come before those of a part.
    """
    limits = [item for item in quoted if _LIMIT.search(item.quote)]
    return limits[-1] if limits else max(reversed(quoted[-2:]), key=_length)


def _length(item: Evidence) -> int:
    """Return the number of an item's lines, without the first."""
    return 0 if item.lines is None else item.lines[1] - item.lines[0]
