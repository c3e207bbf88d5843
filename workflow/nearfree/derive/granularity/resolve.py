"""Answer questions from the rules of their release: expert blocks, query tiles, rows of products.

Each release is read once and each question is answered once.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Literal, TypeVar, cast, get_args

from msgspec.structs import replace

from nearfree.backends.dense_kernels import dense_format
from nearfree.backends.record import Backend
from nearfree.backends.records import backends_of
from nearfree.core.modules.attention import ATTENTION, AttentionQuestion
from nearfree.core.modules.dense_ffn import DenseQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion, local_experts
from nearfree.core.precision import FORMATS
from nearfree.derive.granularity.moe_kernels import block_kernel, moe_format
from nearfree.derive.granularity.releases import (
    MODULAR_MOE,
    PINNED_TRITON,
    Release,
    module_release,
    moe_release,
    ruled_backend,
)
from nearfree.derive.granularity.steps import MOST_TOKENS, Steps
from nearfree.derive.granularity.tiles import Call
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.hardware.occupancy import smem_per_block
from nearfree.log.names import Layout
from nearfree.sources.answers.dense import DenseQuery, DenseRules, Rows
from nearfree.sources.answers.granularity import Files
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.marlin import OTHER_KERNEL_RULES, BlockRowRules
from nearfree.sources.answers.moe import Block, Dtype, MoeQuery, MoeRules, opened_file, rule_sizes
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.language.rule import Rule
from nearfree.sources.packages import reader
from nearfree.sources.record import find_extraction, recorded_extraction

Q = TypeVar("Q")
T = TypeVar("T")
_Layer = tuple[MoeQuestion, Release, Dtype]
_Api = Literal["kvcache", "varlen", "dense"]
_TILE_DTYPES = ("bfloat16", "float16")
"""Element types that have tile rules."""


class Resolver:
    """Answers to questions about layers and calls, from the rules of releases.

    Releases and answers are cached; so are errors. The log of `layout` holds the rules; `cache` is
    the download cache for releases that it lacks, None to read the log only, and `offline` keeps to
    it without the network.
    """

    def __init__(self, layout: Layout, *, cache: Cache | None = None, offline: bool = True) -> None:
        self._layout, self._cache, self._offline = layout, cache, offline
        self._release = memoised(self._read)
        self.moe: Callable[[MoeQuestion], Steps[Block]] = memoised(self._moe)
        """Returns the expert blocks of a layer.

        It raises NearfreeError if there are no rules for the release or kernel, or the answer
        depends on an unknown fact; the message names it.
        """
        self.dense: Callable[[DenseQuestion], Steps[Rows]] = memoised(self._dense)
        """Returns the row tiles and weight passes of a dense product; raises as `moe`."""
        self.attention: Callable[[AttentionQuestion], Steps[Tile]] = memoised(self._attention)
        """Returns the query tiles of a call; raises as `moe`."""
        self._kernel: Callable[[_Layer], str] = memoised(lambda layer: block_kernel(*layer))
        self._steps: dict[object, Steps[Block]] = {}
        self._row_steps: dict[object, Steps[Rows]] = {}

    def check(self, release: Release) -> None:
        """Raise an error if the rules of a release cannot be read.

        Raises NearfreeError if neither the log nor the cache nor the package index has the release.
        """
        self._release(release)

    def rules(self, release: Release) -> Mapping[str, Rule]:
        """Return the rules of a release by name; raises as `check`."""
        return self._release(release).rules

    def extraction(self, release: Release) -> Extraction:
        """Return everything extracted from a release; raises as `check`."""
        return self._release(release).extraction

    def call(self, question: AttentionQuestion) -> Call:
        """Return a call with its release's rules, which also answers other batches and contexts."""
        return self._call(question)[0]

    def _moe(self, question: MoeQuestion) -> Steps[Block]:
        release = moe_release(question.backend, question.backend_version, question.kernel)
        formats = question.dtype, question.weights or question.dtype
        dtype = moe_format(*formats)
        if dtype is None:
            stored = f" with {formats[1]} weights" if question.weights else ""
            raise _no_rules(f"no MoE rules of {release.package} for {formats[0]}{stored} are read")
        if question.top_k > question.experts:
            raise _no_rules(f"top_k {question.top_k} is larger than experts {question.experts}")
        layer = replace(
            question, d_model=0, d_ff=0, experts=0, top_k=0, device_name=None,
            ep=min(question.ep, 2),
        )  # fmt: skip
        kernel = self._kernel((layer, release, dtype))  # whatever the layer's sizes
        release_rules = self._release(release)
        _check_device(question)
        query = MoeQuery(
            experts=local_experts(question.experts, question.ep),
            top_k=question.top_k,
            d_ff=question.d_ff,
            d_model=question.d_model,
            dtype=dtype,
            device=question.device_name,
            triton=PINNED_TRITON.get(release),
            sm=question.sm,
            smem_per_block=smem_per_block(question.sm),
            modular=bool(question.kernel and MODULAR_MOE.search(question.kernel)),
            spread=question.ep > 1,
            override=question.block_size_m,
        )
        # Layers with equal inputs to the rules share their answers.
        if kernel in OTHER_KERNEL_RULES:
            other_rules = BlockRowRules(release_rules.rules, query, kernel)
            key: tuple[object, ...] = (release, kernel, *other_rules.inputs.items())
            return self._shared(key, lambda: other_rules, release_rules.files)
        tuned = opened_file(release_rules.rules, release_rules.tuned, query, MOST_TOKENS)
        sizes = [getattr(query, name) for name in release_rules.moe_sizes]
        options = query.modular, query.spread, query.override, query.rocm
        key = (release, tuned, query.dtype, *options, *sizes)
        make_rules = partial(MoeRules, release_rules.rules, release_rules.tuned, query, MOST_TOKENS)
        return self._shared(key, make_rules, release_rules.files)

    def _shared(
        self, key: object, make_rules: Callable[[], MoeRules | BlockRowRules], files: Files
    ) -> Steps[Block]:
        if key not in self._steps:
            layer_rules = make_rules()
            self._steps[key] = Steps(
                layer_rules.at, layer_rules.step, files, changes=layer_rules.changes
            )
        return self._steps[key]

    def _dense(self, question: DenseQuestion) -> Steps[Rows]:
        release = module_release(question.backend, question.backend_version, "gemm")
        weights = question.weights or question.dtype
        format_ = dense_format(question.dtype, weights)
        if format_ is None:
            raise _no_rules(f"no rows of {weights} weights with {question.dtype} are read")
        if question.sm is None:
            raise _no_rules(
                f"the device has no compute capability, which {question.backend} asks for"
            )
        release_rules = self._release(release)
        query = DenseQuery(
            columns=question.columns,
            depth=question.depth,
            format=format_,
            sm=question.sm,
            sms=question.sm_count,
            kernel=question.kernel,
        )
        product = DenseRules(release_rules.rules, release.version, query)
        key = (release, product.rule, *sorted(product.inputs.items()))
        if key not in self._row_steps:
            self._row_steps[key] = Steps(product.at, product.step, release_rules.files)
        return self._row_steps[key]

    def _attention(self, question: AttentionQuestion) -> Steps[Tile]:
        call, files = self._call(question)

        def tile(n: int) -> Tile:
            return call.tile(question.context, n)

        def step(n: int) -> tuple[int, int]:
            n_tile = tile(n)
            return n_tile.tile, n_tile.tiles

        last = question.most if question.cuda_graph else MOST_TOKENS
        return Steps(tile, step, files, last)

    def _call(self, question: AttentionQuestion) -> tuple[Call, Files]:
        release = module_release(question.backend, question.backend_version, ATTENTION.name)
        if question.dtype not in _TILE_DTYPES:
            raise _no_rules(f"no tile rules of {release.package} for {question.dtype} are read")
        if question.heads % question.kv_heads:
            raise _no_rules(
                f"{question.heads} heads are no multiple of {question.kv_heads} kv_heads"
            )
        backend = ruled_backend(question.backend, ATTENTION.name)
        if backend.capabilities and question.sm and question.sm not in backend.capabilities:
            raise _no_rules(
                f"{question.backend} has no kernels for compute capability {question.sm}: ask "
                "without --attention"
            )
        cache_dtype = question.kv_dtype or question.dtype
        if cache_dtype not in (*_TILE_DTYPES, *(backend.caches or ())):
            raise _cache_error(question.dtype, cache_dtype, backend)
        release_rules = self._release(release)
        _check_device(question)
        query = AttentionQuery(
            heads=question.heads,
            kv_heads=question.kv_heads,
            head_dim=question.head_dim,
            batch=question.batch,
            sm=question.sm,
            sms=question.sm_count,
            paged=question.page_size is not None,
            page_size=question.page_size,
            kv_bytes=FORMATS[cache_dtype].bits // 8,
            api=_api(question, backend),
            backend=backend.kernels or "fa2",
            capture_positions=question.most if question.cuda_graph else None,
            window=question.window,
        )
        module = reader(release.package)
        return Call(module=module, rules=release_rules.rules, query=query), release_rules.files

    def _read(self, release: Release) -> "_ReleaseRules":
        if self._cache is None:
            extraction = recorded_extraction(self._layout, *release)
        else:
            extraction = find_extraction(
                self._layout, *release, cache=self._cache, offline=self._offline
            )
        if extraction is None or not extraction.rules:
            raise EvidenceError(
                f"no rules of {release.package} {release.version} in the log",
                remedy=f"Run `nearfree rules extract {release.package}=={release.version}`",
            )
        return _ReleaseRules(extraction)


class _ReleaseRules:
    """The rules, tuned files and source files of one release."""

    def __init__(self, extraction: Extraction) -> None:
        self.extraction = extraction
        self.rules: dict[str, Rule] = extraction.by_name()
        self.tuned = TunedFiles(extraction.tuned)
        self.files = Files(extraction.fetched)

    @cached_property
    def moe_sizes(self) -> tuple[str, ...]:
        """The names of the layer sizes that the MoE rules read."""
        return rule_sizes(self.rules)


def memoised(answer: Callable[[Q], T]) -> Callable[[Q], T]:
    """Return a function that answers each question once, and raises its error again."""
    answers: dict[Q, T | NearfreeError] = {}

    def ask(question: Q) -> T:
        if question not in answers:
            try:
                answers[question] = answer(question)
            except NearfreeError as error:
                answers[question] = error
        result = answers[question]
        if isinstance(result, NearfreeError):
            raise result.with_traceback(None)  # a kept traceback would keep its frames alive
        return result

    return ask


def _cache_error(dtype: str, cache_dtype: str, backend: Backend) -> EvidenceError:
    """Return the error for a cache format without tiles; its remedy lists what would work."""
    combination = f"{dtype} over a {cache_dtype} cache"
    named = backend.names[0] if backend.names else backend.name
    message = f"no tile rules of {named} for {combination} are read"
    if backend.caches == ():
        message = f"{named} has no kernel for {combination}"
    takers = [
        taker
        for taker in backends_of(ATTENTION.name).values()
        if cache_dtype in (taker.caches or ())
    ]
    instead = [f"--kv-dtype {dtype}", *(f"--attention {taker.names[0]}" for taker in takers)]
    return _no_rules(f"{message}: ask with {' or '.join(instead)}")


def _api(question: AttentionQuestion, backend: Backend) -> _Api:
    """Return the API of a call: `kvcache` over a cache unless the question names another."""
    cached = question.api is None and question.context > 0
    if cached or backend.api is None:  # its rules do not depend on the call
        return "kvcache"
    if question.api not in get_args(_Api):
        raise _no_rules(f"which call of {question.backend} is made (`api`) is not given")
    return cast("_Api", question.api)


def _check_device(question: MoeQuestion | AttentionQuestion) -> None:
    """Raise for a device without compute capability: rules are those of a CUDA build."""
    if question.sm is None:
        raise _no_rules(f"the device has no compute capability, which {question.backend} asks for")


def _no_rules(what: str) -> EvidenceError:
    return EvidenceError(what, remedy="Ask for a case whose rules are read")
