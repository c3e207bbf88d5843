"""The resolver: granularity of one setting over a range, from what a release says."""

from nearfree.errors import EvidenceError
from nearfree.sources.answers.intervals import (
    BackendOrder,
    Files,
    Granularity,
    Interval,
    PathInterval,
    attention_intervals,
    moe_intervals,
)
from nearfree.sources.answers.moe import MoeQuery, MoeRules
from nearfree.sources.attention import AttentionQuery
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import reader


def moe_granularity(found: Extraction, query: MoeQuery, first: int, last: int) -> Granularity:
    """Return BLOCK_SIZE_M and path of a MoE layer for each number of tokens.

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
    rules = MoeRules(found.by_name(), found.tuned, query, last)
    files = Files(found.fetched)
    paths, intervals = moe_intervals(rules.at, first, last, files)
    order = None
    if rules.order is not None:
        order = BackendOrder(
            kernels=tuple(rules.order.value), evidence=tuple(files.quoted(rules.order.branch))
        )
    return _answer(found, paths, intervals, order=order, notes=rules.notes)


def attention_granularity(
    found: Extraction, query: AttentionQuery, first: int, last: int
) -> Granularity:
    """Return tile and path of an attention call for each number of positions.

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
    paths, intervals = attention_intervals(
        lambda n: module.tile(rules, query, n), first, last, Files(found.fetched)
    )
    notes = module.notes(query) if hasattr(module, "notes") else ()
    return _answer(found, paths, intervals, notes=notes)


def _answer(
    found: Extraction,
    paths: tuple[PathInterval, ...],
    intervals: tuple[Interval, ...],
    *,
    order: BackendOrder | None = None,
    notes: tuple[str, ...] = (),
) -> Granularity:
    source = found.fetched[0]
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
