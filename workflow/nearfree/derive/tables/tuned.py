"""Table `tuned`: the block sizes of tuned files, a row per interval of tokens."""

from collections.abc import Iterator
from itertools import repeat

from nearfree.derive.tables.columns import count, flag, text
from nearfree.derive.tables.schema import Table
from nearfree.log.events import RuleExtracted, TunedIndexed
from nearfree.log.evidence import Take, newest_takes
from nearfree.sources.answers.lookup import tuned_intervals

_COPIED = (
    *("package", "version", "device", "experts", "d_ff", "dtype", "per_channel_quant", "down"),
    *("triton", "file", "sha256", "odd"),
)
_SIZES = (
    *("block_size_m", "block_size_n", "block_size_k", "group_size_m"),
    *("num_warps", "num_stages"),
)
TUNED = Table(
    name="tuned",
    row="one interval of tokens of one tuned file, at which all its sizes hold",
    key=("package", "version", "file", "tokens_from"),
    formula="as the tuned file of the release says it",
    code="nearfree.derive.tables.tuned",
    body={
        "package": text("the backend's package"),
        "version": text("its release"),
        "device": text("the device that the file is for", nullable=True),
        "experts": count("E", nullable=True),
        "d_ff": count("N of the file: the width of an expert on one rank", nullable=True),
        "dtype": text("the quantisation's name, nothing for 16-bit floats", nullable=True),
        "block_shape": text("rows and columns of a scale", nullable=True),
        "per_channel_quant": flag("whether activations are scaled by channel"),
        "down": flag("whether the file is for the down projection alone"),
        "triton": text("the Triton version of its folder", nullable=True),
        "tokens_from": count("the first number of tokens of the interval"),
        "tokens_to": count("the last one; nothing where the interval is open", nullable=True),
        "block_size_m": count("BLOCK_SIZE_M there", nullable=True),
        "block_size_n": count("BLOCK_SIZE_N there, where the file says it", nullable=True),
        "block_size_k": count("BLOCK_SIZE_K there, where the file says it", nullable=True),
        "group_size_m": count("GROUP_SIZE_M there, where the file says it", nullable=True),
        "num_warps": count("warps of a block there, where the file says it", nullable=True),
        "num_stages": count(
            "stages of its pipeline there, where the file says it", nullable=True, at_least=0
        ),
        "file": text("path inside the artefact"),
        "sha256": text("digest of the file"),
        "odd": text("why the file has not the known form, and chooses nothing", nullable=True),
    },
)


def tuned_rows(takes: list[Take]) -> Iterator[dict[str, object]]:
    """Yield the intervals of every tuned file; a malformed file is one row without sizes."""
    for take in newest_takes(takes, RuleExtracted):
        for event in take.events_of(TunedIndexed):
            file: TunedIndexed = event.data
            shape = file.block_shape
            common: dict[str, object] = {
                **{name: getattr(file, name) for name in _COPIED},
                "block_shape": None if shape is None else f"{shape[0]},{shape[1]}",
                "from_ids": [event.event_id],
            }
            for first, last, sizes in _intervals(file):
                columns = dict(zip(_SIZES, sizes, strict=True))
                yield common | {"tokens_from": first, "tokens_to": last} | columns


def _intervals(file: TunedIndexed) -> list[tuple[int, int | None, tuple[int | None, ...]]]:
    """Return the intervals with constant sizes; the last entry holds beyond its tokens."""
    if file.odd is not None:
        return [(1, None, (None,) * len(_SIZES))]
    columns = [getattr(file, size) or repeat(None, len(file.tokens)) for size in _SIZES]
    entries: list[tuple[int | None, ...]] = list(zip(*columns, strict=True))
    intervals = tuned_intervals(file.tokens, entries, 1, max(file.tokens))
    return [*intervals[:-1], (intervals[-1].first, None, intervals[-1].value)]
