"""The answer for a matrix on a CPU over a range of rows, with its evidence."""

from collections.abc import Callable
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import asdict

from nearfree.sources.answers.ggml import Passes, Product, ProductQuery, RuleBranch
from nearfree.sources.answers.ggml_cpu import NAMES, Variant
from nearfree.sources.answers.ggml_experts import ExpertProduct
from nearfree.sources.answers.granularity import Files, release_read, runs
from nearfree.sources.answers.intervals import Evidence, ReleaseRead
from nearfree.sources.extraction import Extraction


class CitedRule(Struct, frozen=True, kw_only=True):
    """A rule, and the quote that holds its value, with its conditions."""

    rule: str
    file: str
    lines: tuple[int, int] | None
    sha256: str | None
    quote: str
    condition: str | None
    evidence: tuple[Evidence, ...]


class ShownPasses(Struct, frozen=True, kw_only=True):
    """Passes of one kind, see `ggml.Passes`, and the rules that give them."""

    path: str
    kernel: str
    holds: int
    serves: float
    times: float
    rules: tuple[CitedRule, ...]


class RowsInterval(Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """A range of rows with equal passes, those of its first; `step` is the rule of the change."""

    first: int
    last: int
    step: str | None
    passes: tuple[ShownPasses, ...]


class ProductGranularity(ReleaseRead, frozen=True, kw_only=True):
    """How a release divides the rows of one matrix into passes."""

    type: str
    columns: int
    depth: int
    threads: int
    repack: bool
    routed: bool
    variant: str | None
    cpu_flags: tuple[str, ...]
    intervals: tuple[RowsInterval, ...]
    chosen_by: tuple[CitedRule, ...] = ()
    notes: tuple[str, ...] = ()


def product_granularity(
    extraction: Extraction,
    query: ProductQuery,
    first: int,
    last: int,
    *,
    routed: bool = False,
    variant: Variant | None = None,
    notes: tuple[str, ...] = (),
) -> ProductGranularity:
    """Return the passes over a matrix from `first` to `last` rows.

    With `routed` the matrix is an expert's, and rows are those of the tokens that take it.
    `variant` is the prebuilt library that is loaded, if it is one; `notes` are assumptions of the
    query.

    Raises
    ------
    ConfigError
        The rules of the weights' type are not read.
    EvidenceError
        A rule is missing, or the CPU or the type has kernels whose rules are not read.
    """
    product = (ExpertProduct if routed else Product)(extraction, query)
    files = Files(extraction.fetched)
    deciding_rules = {step.rows: step.rule for step in product.steps(last)}
    points = [(rows, product.passes(rows)) for rows in range(first, last + 1)]
    intervals = (
        RowsInterval(
            first=run[0][0],
            last=run[-1][0],
            step=deciding_rules.get(run[0][0]),
            passes=tuple(_shown_passes(item, files) for item in run[0][1]),
        )
        for run in runs(points, lambda passes: [item.kind() for item in passes])
    )
    return ProductGranularity(
        **release_read(extraction),
        type=query.weight.lower(),
        columns=query.columns,
        depth=query.depth,
        threads=query.threads,
        repack=query.repack,
        routed=routed,
        variant=None if variant is None else variant.name,
        cpu_flags=tuple(sorted(query.flags & NAMES)),
        intervals=tuple(intervals),
        chosen_by=tuple(
            cited_rule(place, files) for place in (variant.branches if variant else ())
        ),
        notes=notes,
    )


def _shown_passes(passes: Passes, files: Files) -> ShownPasses:
    names = ("path", "kernel", "holds", "serves", "times")
    rules = tuple(cited_rule(place, files) for place in passes.places)
    return ShownPasses(**{name: getattr(passes, name) for name in names}, rules=rules)


def cited_rule(
    place: RuleBranch,
    files: Files,
    deciding: Callable[[list[Evidence]], Evidence] = itemgetter(-1),
) -> CitedRule:
    """Return a rule with the line that decides, by default that of its value."""
    rule, branch = place
    quoted = files.branch_evidence(branch)
    return CitedRule(rule=rule, evidence=tuple(quoted), **asdict(deciding(quoted)))
