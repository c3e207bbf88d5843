"""Which tuned file a backend itself would open, by the release's own rules.

The rules differ between releases in a few facts. They are read from each release's source and
handed in as `LookupFacts`; no version is compared here.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from nearfree.errors import EvidenceError
from nearfree.events.types import TunedIndexed


class LookupFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a release's source says on how a tuned file is named and where it is looked for."""

    folder: str
    """Path inside the artefact of the folder `configs` beside the source file that defines
    `get_moe_configs`: `os.path.join(os.path.dirname(os.path.realpath(__file__)), "configs", ..)`.
    """
    blanks_in_block_shape: bool
    """`get_config_file_name` writes `block_shape=[128, 128]`: no `.replace(" ", "")` follows."""
    per_channel_quant_in_name: bool
    """`get_config_file_name` appends `,per_channel_quant=True`; else the argument is not there."""
    h200_family: bool
    """`get_config_file_name`: `if "H200" in device_name.split("_"): device_name = "NVIDIA_H200"`.
    """
    folds_separators: bool
    """The device is `get_device_name_as_file_name()`, which turns each run of white space and
    slashes into one underscore; else it is `get_device_name().replace(" ", "_")`.
    """
    int4_doubles_n: bool
    """`try_get_optimal_moe_config`: `if dtype == "int4_w4a16": N = N * 2`. The N that is doubled
    is the last size of w2, which packs two int4 values into a byte: half of d_ff.
    """
    triton_folders: bool
    """`get_moe_configs` looks in `triton_X_Y_Z` folders: `version_dir = f"triton_{..}"`."""
    directories: tuple[str, ...] | None
    """The versions tried after the running triton's own: `supported_triton_versions = [..]`, in
    order; None where `os.listdir(configs_root)` finds them, newest first.
    """
    honours_batch_invariance: bool
    """`get_moe_configs` returns None at its start in batch-invariant (vLLM) or deterministic
    (SGLang) mode.
    """


def find_tuned(
    index: Sequence[TunedIndexed],
    package: str,
    *,
    facts: LookupFacts,
    experts: int,
    d_ff: int,
    device: str,
    dtype_key: str | None,
    block_shape: tuple[int, int] | None,
    per_channel_quant: bool = False,
    triton: str | None = None,
    batch_invariant: bool = False,
) -> TunedIndexed | None:
    """Return the file that a release would open, None if it would use the rule in its source.

    Only the file of the up projection is sought: it alone chooses BLOCK_SIZE_M, as both
    projections share one sorting of the tokens.

    Parameters
    ----------
    index
        The files of one release of `package`; those of other packages are left out.
    experts, d_ff
        What one rank holds: its experts, and their intermediate size in elements.
    device
        The device's name as the driver gives it; blanks become underscores, nothing else is near.
    dtype_key
        What `get_config_dtype_str` returns, None for bfloat16 and float16.
    triton
        The running triton's `__version__`. Without it the answer must be the same for any.

    Raises
    ------
    EvidenceError
        The index mixes releases, the answer depends on `triton` and that is not given, or the
        file that would be opened is odd.
    """
    files = _of_one_release(index, package)
    if batch_invariant and facts.honours_batch_invariance:
        return None
    name = _file_name(
        facts,
        experts=experts,
        d_ff=d_ff,
        device=device,
        dtype_key=dtype_key,
        block_shape=block_shape,
        per_channel_quant=per_channel_quant,
    )
    found = _opened(files, facts, name, triton)
    if found is not None and found.odd is not None:
        raise EvidenceError(
            f"{found.file} of {package} {found.version} would be opened, but: {found.odd}",
            remedy="Read the file; no answer rests on a form that is not known",
        )
    return found


def devices(index: Sequence[TunedIndexed]) -> list[str]:
    """Return the names of the devices that files of a known form are for, ordered."""
    return sorted({event.device for event in index if event.device and event.odd is None})


def _of_one_release(index: Sequence[TunedIndexed], package: str) -> dict[str, TunedIndexed]:
    """Return the package's events by path."""
    events = [event for event in index if event.package == package]
    versions = sorted({event.version for event in events})
    if len(versions) > 1:
        raise EvidenceError(
            f"tuned files of {package} {' and '.join(versions)} are mixed",
            remedy="Hand in the files of one release",
        )
    return {event.file: event for event in events}


def _file_name(
    facts: LookupFacts,
    *,
    experts: int,
    d_ff: int,
    device: str,
    dtype_key: str | None,
    block_shape: tuple[int, int] | None,
    per_channel_quant: bool,
) -> str:
    """Return the name that `get_config_file_name` makes, for the N its caller hands in."""
    n = d_ff
    if dtype_key == "int4_w4a16" and not facts.int4_doubles_n:
        n = d_ff // 2
    where = re.sub(r"[\s/]+", "_", device) if facts.folds_separators else device.replace(" ", "_")
    if facts.h200_family and "H200" in where.split("_"):
        where = "NVIDIA_H200"
    name = f"E={experts},N={n},device_name={where}"
    if dtype_key:
        name += f",dtype={dtype_key}"
    if block_shape and all(block_shape):
        blank = " " if facts.blanks_in_block_shape else ""
        name += f",block_shape=[{block_shape[0]},{blank}{block_shape[1]}]"
    if per_channel_quant and facts.per_channel_quant_in_name:
        name += ",per_channel_quant=True"
    return f"{name}.json"


def _opened(
    files: dict[str, TunedIndexed], facts: LookupFacts, name: str, triton: str | None
) -> TunedIndexed | None:
    """Return the file of this name that the release would open."""
    if not facts.triton_folders:
        return files.get(f"{facts.folder}/{name}")
    by_triton = {
        event.triton: event
        for event in files.values()
        if event.triton and event.file == f"{facts.folder}/{_folder(event.triton)}/{name}"
    }
    order = facts.directories
    if order is None:
        order = tuple(sorted(by_triton, key=_numbers, reverse=True))
    fallback = next((by_triton[version] for version in order if version in by_triton), None)
    if triton is not None:
        return by_triton.get(triton, fallback)
    # A running triton with a folder of its own opens that; any other one opens the fallback.
    other = [event for event in by_triton.values() if event is not fallback]
    if other:
        versions = ", ".join(sorted(by_triton, key=_numbers))
        raise EvidenceError(
            f"which {name} is opened depends on the running triton; there are files for {versions}",
            remedy="Name the version of triton",
        )
    return fallback


def _folder(triton: str) -> str:
    return f"triton_{triton.replace('.', '_')}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
