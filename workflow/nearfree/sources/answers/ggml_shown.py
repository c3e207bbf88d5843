"""The answer for a matrix on a CPU over a range of rows, with the places that say so."""

from itertools import groupby

from msgspec import Struct
from msgspec.structs import asdict

from nearfree.sources.answers.ggml import Product
from nearfree.sources.answers.ggml_cpu import NAMES, Variant
from nearfree.sources.answers.ggml_passes import Passes, Place, ProductQuery
from nearfree.sources.answers.granularity import Files
from nearfree.sources.answers.intervals import Evidence
from nearfree.sources.extraction import Extraction


class Said(Struct, frozen=True, kw_only=True):
    """A rule and the place that holds what it answers, with its conditions."""

    rule: str
    file: str
    lines: tuple[int, int] | None
    sha256: str | None
    quote: str
    condition: str | None
    evidence: tuple[Evidence, ...]


class ShownPasses(Struct, frozen=True, kw_only=True):
    """Passes of one kind, see `ggml.Passes`, and the rules that say so."""

    path: str
    kernel: str
    holds: int
    serves: int
    times: int
    rules: tuple[Said, ...]


class RowsInterval(Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Numbers of rows with the same passes, those of the first; `step` is the rule of a change."""

    first: int
    last: int
    step: str | None
    passes: tuple[ShownPasses, ...]


class ProductGranularity(Struct, frozen=True, kw_only=True):
    """How a release takes the rows of one matrix."""

    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: str
    type: str
    columns: int
    depth: int
    threads: int
    repack: bool
    variant: str | None
    cpu_flags: tuple[str, ...]
    intervals: tuple[RowsInterval, ...]
    chosen_by: tuple[Said, ...] = ()
    notes: tuple[str, ...] = ()


def product_granularity(
    extraction: Extraction,
    query: ProductQuery,
    first: int,
    last: int,
    *,
    variant: Variant | None = None,
    notes: tuple[str, ...] = (),
) -> ProductGranularity:
    """Return the passes over a matrix from `first` to `last` rows.

    Parameters
    ----------
    first, last
        Rows; both ends belong to the answer.
    variant
        The prebuilt library that is loaded, where one is.
    notes
        What the question takes for granted.

    Raises
    ------
    ConfigError
        The weights' type is none whose rules are read.
    EvidenceError
        A rule is missing, or the CPU or the type has kernels that are not read.
    """
    product = Product(extraction, query)
    source, files = extraction.fetched[0], Files(extraction.fetched)
    changed = {step.rows: step.rule for step in product.steps(last)}
    runs = groupby(
        range(first, last + 1), lambda rows: tuple(each.kind() for each in product.passes(rows))
    )
    intervals = []
    for _, run in runs:
        places = [*run]
        shown = tuple(_shown(each, files) for each in product.passes(places[0]))
        intervals.append(
            RowsInterval(
                first=places[0], last=places[-1], step=changed.get(places[0]), passes=shown
            )
        )
    return ProductGranularity(
        package=extraction.package,
        version=extraction.version,
        artefact=source.artefact,
        artefact_sha256=source.artefact_sha256,
        verified=source.verified,
        type=query.weight.lower(),
        columns=query.columns,
        depth=query.depth,
        threads=query.threads,
        repack=query.repack,
        variant=None if variant is None else variant.name,
        cpu_flags=tuple(sorted(query.flags & NAMES)),
        intervals=tuple(intervals),
        chosen_by=tuple(_said(place, files) for place in (variant.branches if variant else ())),
        notes=notes,
    )


def _shown(each: Passes, files: Files) -> ShownPasses:
    return ShownPasses(
        path=each.path,
        kernel=each.kernel,
        holds=each.holds,
        serves=each.serves,
        times=each.times,
        rules=tuple(_said(place, files) for place in each.places),
    )


def _said(place: Place, files: Files) -> Said:
    rule, branch = place
    quoted = files.quoted(branch)
    return Said(rule=rule, evidence=tuple(quoted), **asdict(quoted[-1]))
