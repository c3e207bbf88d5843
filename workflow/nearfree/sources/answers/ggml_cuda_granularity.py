"""The answer for a matrix on an NVIDIA GPU over a range of rows, with its evidence."""

import re
from itertools import groupby

from msgspec import Struct
from msgspec.structs import asdict

from nearfree.sources.answers.ggml import RuleBranch
from nearfree.sources.answers.ggml_cuda import CudaProduct, CudaQuery
from nearfree.sources.answers.ggml_granularity import CitedRule
from nearfree.sources.answers.granularity import Files
from nearfree.sources.answers.intervals import Evidence
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


class CudaGranularity(Struct, frozen=True, kw_only=True):
    """How a release divides the rows of one matrix, or of experts', into kernels and passes."""

    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: str
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
    source, files = extraction.fetched[0], Files(extraction.fetched)
    runs = groupby(range(first, last + 1), lambda rows: product.launch(rows).kind())
    intervals = []
    for run in ([*rows] for _, rows in runs):
        launch = product.launch(run[-1])
        intervals.append(
            KernelInterval(
                first=run[0],
                last=run[-1],
                path=launch.path,
                holds=launch.holds,
                passes=launch.passes,
                per=launch.per,
                rules=tuple(cited_rule(place, files) for place in reversed(launch.places)),
            )
        )
    return CudaGranularity(
        package=extraction.package,
        version=extraction.version,
        artefact=source.artefact,
        artefact_sha256=source.artefact_sha256,
        verified=source.verified,
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


def cited_rule(place: RuleBranch, files: Files) -> CitedRule:
    """Return a rule with the line that limits its columns, else with the one of its value."""
    rule, branch = place
    quoted = files.branch_evidence(branch)
    return CitedRule(rule=rule, evidence=tuple(quoted), **asdict(deciding(quoted)))


def deciding(quoted: list[Evidence]) -> Evidence:
    """Return the last line by which a number of columns chooses, else the lines of the value.

    Of a value in several parts that are all of its lines, which come before those of a part.
    """
    limits = [item for item in quoted if _LIMIT.search(item.quote)]
    return limits[-1] if limits else max(reversed(quoted[-2:]), key=_length)


def _length(item: Evidence) -> int:
    """Return the number of an item's lines, without the first."""
    return 0 if item.lines is None else item.lines[1] - item.lines[0]
