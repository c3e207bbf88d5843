"""From a question to the rules of its release: expert blocks and query tiles, asked once each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Literal, TypeVar, cast, get_args

import numpy as np
from msgspec.structs import replace

from nearfree.backends.dense_kernels import dense_format
from nearfree.backends.record import Backend
from nearfree.backends.records import running
from nearfree.core.modules.attention import ATTENTION, AttentionQuestion
from nearfree.core.modules.dense_ffn import DenseQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion, local_experts
from nearfree.core.precision import FORMATS
from nearfree.derive.granularity.moe_kernels import asked_kernel, moe_format
from nearfree.derive.granularity.releases import (
    MODULAR_MOE,
    PINNED_TRITON,
    Release,
    module_release,
    moe_release,
    ruled_backend,
)
from nearfree.derive.granularity.steps import MOST_TOKENS, Steps
from nearfree.derive.granularity.tiles import Call, Whole
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.hardware.platforms import shared_memory
from nearfree.log.names import Layout
from nearfree.sources.answers.dense import DenseQuery, DenseRules, Rows
from nearfree.sources.answers.granularity import (
    Files,
    attention_intervals,
    dense_intervals,
    moe_intervals,
)
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.marlin import BESIDE_TRITON, RowsOfBlocks
from nearfree.sources.answers.moe import Block, MoeQuery, MoeRules, asked_sizes, opened_file
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.language.rule import Rule
from nearfree.sources.packages import reader
from nearfree.sources.record import find_extraction, recorded_extraction

T = TypeVar("T")
_Kept = dict[object, object]
_Api = Literal["kvcache", "varlen", "dense"]
_TILED = ("bfloat16", "float16")
"""Element types of which tile rules are read."""


class Resolver:
    """What releases say of layers and calls; every release is read once, every layer asked once.

    Parameters
    ----------
    layout
        The results root, whose log holds the rules.
    cache
        Where a release that the log lacks is read into; None keeps to the log.
    offline
        Whether to do without the network there.
    """

    def __init__(self, layout: Layout, *, cache: Cache | None = None, offline: bool = True) -> None:
        self._layout, self._cache, self._offline = layout, cache, offline
        self._releases: _Kept = {}
        self._layers: _Kept = {}
        self._kernels: _Kept = {}
        self._calls: _Kept = {}
        self._products: _Kept = {}
        self._steps: dict[object, Steps[Block]] = {}
        self._row_steps: dict[object, Steps[Rows]] = {}

    def check(self, release: Release) -> None:
        """Raise what stands in the way of a release's rules: they are neither here nor to be had.

        Raises
        ------
        NearfreeError
            The log lacks the release, and so does the cache or the index.
        """
        _once(self._releases, release, self._read)

    def rules(self, release: Release) -> Mapping[str, Rule]:
        """Return the rules of a release by name; the errors are those of `check`."""
        return _once(self._releases, release, self._read).rules

    def extraction(self, release: Release) -> Extraction:
        """Return all that is read of a release; the errors are those of `check`."""
        return _once(self._releases, release, self._read).found

    def moe(self, asked: MoeQuestion) -> Steps[Block]:
        """Return the expert blocks of a layer.

        Raises
        ------
        NearfreeError
            There are no rules of the release or kernel, or the answer depends on a fact that is
            not known; the message names it.
        """
        return _once(self._layers, asked, self._moe)

    def dense(self, asked: DenseQuestion) -> Steps[Rows]:
        """Return how a dense product takes its rows; the errors are those of `moe`."""
        return _once(self._products, asked, self._dense)

    def attention(self, asked: AttentionQuestion) -> Steps[Tile]:
        """Return the query tiles of a call; the errors are those of `moe`."""
        return _once(self._calls, asked, self._attention)

    def call(self, asked: AttentionQuestion) -> Call:
        """Return a call with the rules of its release, to ask at other batches and contexts too."""
        return self._call(asked)[0]

    def _moe(self, asked: MoeQuestion) -> Steps[Block]:
        release = moe_release(asked.backend, asked.backend_version, asked.kernel)
        formats = asked.dtype, asked.weights or asked.dtype
        dtype = moe_format(*formats)
        if dtype is None:
            stored = f" with {formats[1]} weights" if asked.weights else ""
            raise _unknown(f"no MoE rules of {release.package} for {formats[0]}{stored} are read")
        if asked.top_k > asked.experts:
            raise _unknown(f"top_k {asked.top_k} is larger than experts {asked.experts}")
        runs = (release, formats, asked.kernel, asked.block_size_m, asked.backend, asked.sm)
        kernel = _once(
            self._kernels,
            (*runs, asked.ep > 1),
            lambda _: asked_kernel(asked, release, dtype),
        )
        known = _once(self._releases, release, self._read)
        _check_device(asked)
        query = MoeQuery(
            experts=local_experts(asked.experts, asked.ep),
            top_k=asked.top_k,
            d_ff=asked.d_ff,
            d_model=asked.d_model,
            dtype=dtype,
            device=asked.device_name,
            triton=PINNED_TRITON.get(release),
            sm=asked.sm,
            smem_per_block=_smem_per_block(asked.sm),
            modular=bool(asked.kernel and MODULAR_MOE.search(asked.kernel)),
            spread=asked.ep > 1,
            override=asked.block_size_m,
        )
        # Layers that are alike in all that the rules ask for share their answers.
        if kernel in BESIDE_TRITON:
            rows = BESIDE_TRITON[kernel](known.rules, query)
            key: tuple[object, ...] = (release, kernel, *rows.inputs().items())
            return self._shared(key, lambda: rows, known.files)
        tuned = opened_file(known.rules, known.tuned, query, MOST_TOKENS)
        sizes = [getattr(query, name) for name in known.moe_sizes]
        modes = query.modular, query.spread, query.override, query.rocm
        key = (release, tuned, query.dtype, *modes, *sizes)
        layer = partial(MoeRules, known.rules, known.tuned, query, MOST_TOKENS)
        return self._shared(key, layer, known.files)

    def _shared(
        self, key: object, layer: Callable[[], MoeRules | RowsOfBlocks], files: Files
    ) -> Steps[Block]:
        if key not in self._steps:
            made = layer()
            steps = Steps(made.at, made.step, moe_intervals, files, changes=made.changes)
            self._steps[key] = steps
        return self._steps[key]

    def _dense(self, asked: DenseQuestion) -> Steps[Rows]:
        release = module_release(asked.backend, asked.backend_version, "gemm")
        weights = asked.weights or asked.dtype
        format_ = dense_format(asked.dtype, weights)
        if format_ is None:
            raise _unknown(f"no rows of {weights} weights with {asked.dtype} are read")
        if asked.sm is None:
            raise _unknown(f"the device has no compute capability, which {asked.backend} asks for")
        known = _once(self._releases, release, self._read)
        query = DenseQuery(
            columns=asked.columns,
            depth=asked.depth,
            format=format_,
            sm=asked.sm,
            sms=asked.sm_count,
            kernel=asked.kernel,
        )
        product = DenseRules(known.rules, release.version, query)
        key = (release, product.rule, *sorted(product.inputs.items()))
        if key not in self._row_steps:
            steps = Steps(product.at, product.step, dense_intervals, known.files)
            self._row_steps[key] = steps
        return self._row_steps[key]

    def _attention(self, asked: AttentionQuestion) -> Steps[Tile]:
        call, files = self._call(asked)

        def tile(n: int) -> Tile:
            return call.tile(asked.context, n)

        def step(n: int) -> tuple[int, int]:
            found = tile(n)
            return found.tile, found.tiles

        most = asked.most if asked.cuda_graph else MOST_TOKENS
        return Steps(tile, step, attention_intervals, files, most)

    def _call(self, asked: AttentionQuestion) -> tuple[Call, Files]:
        release = module_release(asked.backend, asked.backend_version, ATTENTION.name)
        if asked.dtype not in _TILED:
            raise _unknown(f"no tile rules of {release.package} for {asked.dtype} are read")
        if asked.heads % asked.kv_heads:
            raise _unknown(f"{asked.heads} heads are no multiple of {asked.kv_heads} kv_heads")
        backend = ruled_backend(asked.backend, ATTENTION.name)
        cache = asked.kv_dtype or asked.dtype
        if cache not in (*_TILED, *(backend.caches or ())):
            raise _no_cache(asked.dtype, cache, backend)
        if backend.capabilities and asked.sm and asked.sm not in backend.capabilities:
            raise _unknown(f"{asked.backend} has no kernels for compute capability {asked.sm}")
        known = _once(self._releases, release, self._read)
        _check_device(asked)
        query = AttentionQuery(
            heads=asked.heads,
            kv_heads=asked.kv_heads,
            head_dim=asked.head_dim,
            batch=asked.batch,
            sm=asked.sm,
            sms=asked.sm_count,
            paged=asked.page_size is not None,
            page_size=asked.page_size,
            kv_bytes=FORMATS[cache].bits // 8,
            api=_api(asked, backend),
            backend=backend.kernels or "fa2",
            capture_positions=asked.most if asked.cuda_graph else None,
            window=asked.window,
        )
        module = reader(release.package)
        return Call(module=module, rules=known.rules, query=query), known.files

    def _read(self, release: Release) -> "_ReleaseRules":
        if self._cache is None:
            found = recorded_extraction(self._layout, *release)
        else:
            found = find_extraction(
                self._layout, *release, cache=self._cache, offline=self._offline
            )
        if found is None or not found.rules:
            raise EvidenceError(
                f"no rules of {release.package} {release.version} in the log",
                remedy=f"Run `nearfree rules extract {release.package}=={release.version}`",
            )
        return _ReleaseRules(found)


class _ReleaseRules:
    """What a release says, ready to be asked."""

    def __init__(self, found: Extraction) -> None:
        self.found = found
        self.rules: dict[str, Rule] = found.by_name()
        self.tuned = TunedFiles(found.tuned)
        self.files = Files(found.fetched)

    @cached_property
    def moe_sizes(self) -> tuple[str, ...]:
        """The sizes of an MoE layer that its rules ask for."""
        return asked_sizes(self.rules)


def _once(kept: _Kept, asked: object, answer: Callable[..., T]) -> T:
    """Return the answer to a question, or raise what it raised the first time."""
    if asked not in kept:
        try:
            kept[asked] = answer(asked)
        except NearfreeError as error:
            kept[asked] = error
    found = kept[asked]
    if isinstance(found, NearfreeError):
        raise found.with_traceback(None)  # else it keeps the frames of each time alive
    return cast("T", found)


def _no_cache(dtype: str, cache: str, backend: Backend) -> EvidenceError:
    """Return why there are no tiles over a cache of another format, and what would work."""
    asked = f"{dtype} over a {cache} cache"
    named = backend.names[0] if backend.names else backend.name
    lacking = f"no tile rules of {named} for {asked} are read"
    if backend.caches == ():
        lacking = f"{named} has no kernel for {asked}"
    takers = [each for each in running(ATTENTION.name).values() if cache in (each.caches or ())]
    instead = [f"--kv-dtype {dtype}", *(f"--attention {each.names[0]}" for each in takers)]
    return _unknown(f"{lacking}: ask with {' or '.join(instead)}")


def _api(asked: AttentionQuestion, backend: Backend) -> _Api:
    """Return which call is made: with a cache, where nothing is named, that for a KV cache."""
    cached = asked.api is None and asked.context > 0
    if cached or backend.api is None:  # its rules do not depend on the call
        return "kvcache"
    if asked.api not in get_args(_Api):
        raise _unknown(f"which call of {asked.backend} is made (`api`) is not given")
    return cast("_Api", asked.api)


def _smem_per_block(sm: int | None) -> int | None:
    try:
        return None if sm is None else shared_memory(sm).per_block
    except EvidenceError:
        return None  # a rule that asks for it then has no answer, and says so


def _check_device(asked: MoeQuestion | AttentionQuestion) -> None:
    """Refuse a device without compute capability: rules are read as a build for CUDA has them."""
    if asked.sm is None:
        raise _unknown(f"the device has no compute capability, which {asked.backend} asks for")


def _unknown(what: str) -> EvidenceError:
    return EvidenceError(what, remedy="Ask for a case whose rules are read")


POINTS_AT_ONCE = 1 << 18


def tile_sizes(
    resolver: Resolver, asked: Sequence[AttentionQuestion], positions: Whole
) -> tuple[Whole, list[NearfreeError | None]]:
    """Return the tiles of many calls, as `Resolver.attention` gives those of one.

    Parameters
    ----------
    positions
        Numbers of positions (N), [call, grid].

    Returns
    -------
    Rows of a tile, the rows that a position takes, and whether a tile goes through all keys alone,
    [3, call, grid]; and an error for each call that has none: that of its question, or of the first
    N without a tile.
    """
    sizes = np.zeros((3, *positions.shape), np.int64)
    errors: list[NearfreeError | None] = [None] * len(asked)
    for places in _alike(asked, max(1, POINTS_AT_ONCE // max(1, positions.shape[1]))):
        part = [asked[place] for place in places]
        sizes[:, places] = _together(resolver, part, positions[places])
    for place in np.flatnonzero((sizes[:2] < 1).any(axis=(0, 2))).tolist():
        try:
            steps = resolver.attention(asked[place])
            tiles = [steps.at(n) for n in positions[place].tolist()]
            sizes[:, place] = np.array([_sizes_of(tile) for tile in tiles]).T
        except NearfreeError as error:
            errors[place] = error
            sizes[:, place] = 1
    return sizes, errors


def _alike(asked: Sequence[AttentionQuestion], most: int) -> Iterator[list[int]]:
    """Yield the places of calls that differ in batch and context, so many at once at most."""
    groups: dict[AttentionQuestion, list[int]] = {}
    for place, each in enumerate(asked):
        captured = each.most if each.cuda_graph else 1
        # What is asked of a release may depend on whether there is a cache.
        alike = replace(each, batch=1, context=min(each.context, 1), most=captured)
        groups.setdefault(alike, []).append(place)
    for places in groups.values():
        for begin in range(0, len(places), most):
            yield places[begin : begin + most]


def _together(resolver: Resolver, asked: Sequence[AttentionQuestion], positions: Whole) -> Whole:
    """Return the tiles of calls that are alike; zero at points that must be asked alone."""
    shape = positions.shape
    try:
        batch, context = (
            np.repeat(np.array(each, np.int64), shape[1])
            for each in ([one.batch for one in asked], [one.context for one in asked])
        )
        codes, tiles = resolver.call(asked[0]).kinds(batch, context, positions.reshape(-1))
    except (NearfreeError, OverflowError):
        return np.zeros((3, *shape), np.int64)
    of_kind = [(0, 0, 0) if tile is None else _sizes_of(tile) for tile in tiles]
    return np.array(of_kind, np.int64)[codes].T.reshape(3, *shape)


def _sizes_of(tile: Tile) -> tuple[int, int, int]:
    return tile.tile, tile.rows_per_position, int(tile.unsplit)
