"""A model on a platform under one serving condition, and the queries of its modules."""

from collections.abc import Collection, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.backends.decode_kernels import WIDEST
from nearfree.backends.moe_kernels import CUTLASS, TRTLLM
from nearfree.backends.names import BackendRelease, is_since
from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.backends.records import BY_NAME
from nearfree.config.loads import MeasuredLoads
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.collective import COLLECTIVE
from nearfree.core.modules.dense_ffn import DENSE_FFN, GEMM
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.modules.routing import routing_baseline
from nearfree.core.modules.stream_mixing import STREAM_MIXING
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import PLAIN, Dtype, Precision, Product, uniform
from nearfree.core.protocols import Positive
from nearfree.core.routing_names import Routing
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.collectives import collectives
from nearfree.decoders.ranks.engines import ENGINES, FUSED, SGLANG, VLLM
from nearfree.decoders.ranks.modules import MOE, ModuleUse, modules, requests
from nearfree.derive.granularity.graphs import Graphs
from nearfree.derive.granularity.query_frame import ASKED_SCHEMA
from nearfree.derive.memory import Memory
from nearfree.derive.predict.forecast.left_out import caveats_of
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.work_model.family import Flags
from nearfree.errors import ConfigError
from nearfree.units import US_PER_MS

_SHARES = {"shares": pl.List(pl.List(pl.Float64))}
"""A further column of queries: measured shares of experts, [layers, E]."""
_USES = {
    "deployment": pl.Int64,
    "place": pl.Int64,
    "role": pl.String,
    "count": pl.Int64,
    "main": pl.Boolean,
    "module": pl.String,
    "asked": pl.Int64,
}
"""`place` is the module's index in the forward; `module` is its kind."""
_ROUNDS_BEFORE_SENDING = "0.19.0"
"""The oldest release of vLLM read that rounds rows before it sends them to experts, except for
FlashInfer's CUTLASS in blocks: vllm 0.19.0 and 0.33.0, in vllm/model_executor/layers/fused_moe,
prepare_finalize/naive_dp_ep.py:16-40 and 26-61, experts/flashinfer_cutlass_moe.py:124 of 0.33.0."""
_EIGHT_BIT_FORMAT: dict[Dtype, Dtype] = {"float8_block": "float8", "mxfp8": "float8"}
DENSE = (GEMM.name, DENSE_FFN.name)
"""The modules of dense products."""
OF_ROWS = (*DENSE, MOE_FFN.name, COLLECTIVE.name, STREAM_MIXING.name)
"""Modules whose T depends on the rows of a step, whichever request they are of; other modules run
each request by itself."""
MOST_POINTS = 1_000_000
"""Most points T(N) of one query: deployments times N of the grid."""


class SlowerOption(NamedTuple):
    """An option with which T(1) is `ratio` times the `instead_us` of what is asked `instead`."""

    option: str
    ratio: float
    instead: str
    instead_us: float

    def __str__(self) -> str:
        """Return the caveat as a sentence without its end."""
        return (
            f"{self.option} makes T(1) {self.ratio:.2f} times as long: {self.instead} T(1) is "
            f"{self.instead_us / US_PER_MS:.3g} ms"
        )


class Deployment(Struct, frozen=True, kw_only=True):
    """One model on one platform: backends, b, L, routing, element type and GPUs."""

    decoder: Decoder
    platform: str
    attention: BackendRelease
    moe: BackendRelease | None = None
    """The backend of the experts; None, like `routing`, where no layer has experts."""
    server: BackendRelease | None = None
    """The named engine of a model without experts."""
    dense: BackendRelease | None = None
    """The backend of dense products with quantised weights; None for torch, or without any."""
    routing: Routing | None = None
    loads: MeasuredLoads | None = None
    """The measured shares of experts behind a routing that names them."""
    batch: Positive = 1
    context: Positive = 4096
    precision: Precision | None = None
    """None for the model file's own dtype throughout."""
    parallel: Parallel = ONE_GPU
    library: str | None = None
    """The library that runs the experts in formats whose blocks are not read: it picks its own."""
    decoder_kernel: str | None = None
    """The engine's decode kernel by its name in public tables, where no attention is named."""
    other_kernel: str | None = None
    """The decode kernel that the engine runs instead, whose tiles are not known, in words."""
    memory: Memory | None = None
    """None where it is not known."""
    served: bool = False
    """Whether an engine runs its steps; a forward that is measured by itself is not served."""
    graphs: Graphs | None = None
    """The graphs that steps are padded to; None without an engine, or if they are not read."""
    revision: str | None = None
    """The commit of a model of the Hugging Face Hub."""
    positions: int | None = None
    """Most positions of a request by the model's file; None where the file does not say."""
    assembled: bool = False
    """Whether the builder of a machine chooses its number of GPUs."""
    slower: tuple[SlowerOption, ...] = ()
    """Options of the query that make T(1) longer: `forecast/slower_options.py`."""
    instead: tuple[str, ...] = ()
    """Options that answer it where T(N) is not known: `forecast/alternatives.py` tries them."""
    stand_in: bool = False
    """Whether Triton's kernel of experts substitutes for another that `moe` may run."""
    drafts_plain: bool = False
    """Whether the model's own draft layer is stored in the plain format."""
    dense_kernel: str | None = None
    """The kernel of float8_block products, where the engine's usual one is off for this model."""
    by_file: str | None = None
    """The kernel of experts that the model's file selects, if T(N) of it is not known."""
    node_gpus: int | None = None
    """GPUs per node; None where all GPUs lie on one node."""
    direct_gpus: int | None = None
    """GPUs that are taken to reach each other over PCIe; None where NVLink joins them."""
    on_cpu: bool = False
    class_note: str | None = None
    """A caveat about a release that runs the model without a class of its own."""
    sums_by_flashinfer: bool = False
    """Whether a layer's all-reduces are FlashInfer's kernels."""

    @property
    def engine(self) -> BackendRelease:
        """The engine that runs its steps: of the experts, else the named one, else vLLM.

        It determines sharding, collectives, the call of attention, and the time outside of modules.
        """
        engines = (
            release for release in (self.moe, self.server) if release and release.name in ENGINES
        )
        return next(engines, BackendRelease(VLLM.name))

    @property
    def too_long(self) -> str | None:
        """A caveat where the context exceeds the model's positions, None where it does not."""
        if self.positions is None or self.context < self.positions:
            return None
        return (
            f"{self.context:,} cached positions and a new one are more than the "
            f"{self.positions:,} that the model's file allows: engines refuse them unless told "
            "otherwise (vLLM by VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, SGLang by "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1)"
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveats of its T(N)."""
        return caveats_of(self)

    @property
    def moe_kernel(self) -> str | None:
        """The kernel or library whose T(N) is taken for its experts, None where blocks are read."""
        return BY_PUBLIC_NAME.get(self.library or "", self.library)

    @property
    def fused(self) -> int:
        """The experts per layer if the shared expert runs as one of the routed ones, else 0."""
        experts, fused = self.decoder.experts, FUSED.get(self.decoder.model_type)
        if not experts or not fused or not self.served or self.engine.name != SGLANG.name:
            return 0
        since, experts_count = fused
        is_fused = (
            is_since(self.engine.version, since)
            and experts_count in (None, experts.experts)
            and experts.shared_d_ff == experts.d_ff
            and self.parallel.ep == 1
            and self.formats.experts.weights == self.formats.shared_experts.weights
            and BY_PUBLIC_NAME.get(self.library or "") != TRTLLM
        )
        return experts.experts + 1 if is_fused else 0

    @property
    def sums(self) -> int:
        """The all-reduces of a forward."""
        if self.parallel.tp == 1:
            return 0
        return sum(use.count for use in self.uses() if use.setting.operation == "all_reduce")

    @property
    def sent(self) -> Dtype | None:
        """The format in which rows are sent to experts, None for the plain format."""
        rows = self.formats.experts.activations
        engine, kernel = self.engine, BY_PUBLIC_NAME.get(self.library or "")
        rounds = engine.name == VLLM.name and is_since(engine.version, _ROUNDS_BEFORE_SENDING)
        rounded_later = rows == "float8_block" and kernel == CUTLASS
        if rows in PLAIN or rounded_later or not rounds:
            return None
        return _EIGHT_BIT_FORMAT.get(rows, rows)

    @property
    def full_baseline(self) -> int:
        """The paper's baseline N (app. C.3), from which balanced routing activates all experts."""
        experts = self.decoder.experts
        if experts is None:
            return 1
        return routing_baseline(self.routing, experts.experts, experts.top_k, self.batch)

    @property
    def formats(self) -> Precision:
        """The formats in which it computes."""
        return self.precision or uniform(self.decoder.dtype)

    @property
    def main(self) -> Product:
        """The formats of the products that most weights enter: the experts', or the FFN's."""
        return self.formats.experts if self.decoder.moe_layers else self.formats.ffn

    @property
    def said(self) -> dict[str, Dtype]:
        """The main formats, by the names of answers: weights, activations, kv."""
        return self.formats.named_formats("experts" if self.decoder.moe_layers else "ffn")

    @property
    def about(self) -> dict[str, object]:
        """Its serving condition, by the names of the command line's options."""
        return {
            "model": self.decoder.name,
            "platform": self.platform,
            "attention": str(self.attention),
            "moe": str(self.moe) if self.moe else None,
            **({"engine": str(self.server)} if self.server else {}),
            **({"dense": str(self.dense)} if self.dense else {}),
            **({"graphs": str(self.graphs.engine)} if self.graphs else {}),
            "routing": self.routing,
            "dtype": self.main.activations,
            **structs.asdict(self.parallel),
            "batch": self.batch,
            "context": self.context,
        }

    def uses(self) -> tuple[ModuleUse, ...]:
        """Return the modules of a rank's forward, then the collectives between ranks."""
        rank_modules = modules(
            self.decoder,
            batch=self.batch,
            context=self.context,
            attention=self.attention,
            moe=self.moe or self.engine,
            dense=self.dense,
            routing=self.routing,
            precision=self.precision,
            parallel=self.parallel,
        )
        api = BY_NAME[self.attention.name].vllm_api
        if api and self.served and self.engine.name == VLLM.name:
            rank_modules = tuple(_with_api(use, api) for use in rank_modules)
        plain = self.precision.plain if self.precision else self.decoder.dtype
        return rank_modules + collectives(
            structs.replace(self.decoder, dtype=plain),
            self.parallel,
            batch=requests(self.batch, self.parallel.dp),
            engine=self.engine,
            sent=self.sent,
            node_gpus=self.node_gpus,
        )


def _with_api(use: ModuleUse, api: str) -> ModuleUse:
    """Return a module with the API by which an engine calls attention."""
    if use.setting.module != ATTENTION.name:
        return use
    return structs.replace(use, setting=structs.replace(use.setting, api=api))


class Questions:
    """The queries of some deployments' modules, each distinct query once.

    Parameters
    ----------
    deployments
        The deployments, in the order in which answers name them.
    grid
        N, rising from 1: the same for all.
    only
        The kinds of modules that are asked about; all if None. Places stay those of the forward.

    Raises
    ------
    ConfigError
        There are more than MOST_POINTS points, which memory may not hold.
    """

    def __init__(
        self,
        deployments: Sequence[Deployment],
        grid: Sequence[int],
        *,
        only: Collection[str] | None = None,
    ) -> None:
        if len(deployments) * len(grid) > MOST_POINTS:
            raise ConfigError(
                f"{len(deployments)} deployments with {len(grid)} N each are asked about",
                remedy=f"Ask about {MOST_POINTS} points at most: fewer deployments, or smaller N",
            )
        self.deployments, self.grid = deployments, list(grid)
        self._rows: list[dict[str, object]] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        uses_of = cache(Deployment.uses)  # of batch 1; other batches have the same modules
        uses = [
            (index, place, use.role, use.count, use.main, use.setting.module,
             self._number(deployment, use))
            for index, deployment in enumerate(deployments)
            for place, use in enumerate(
                uses_of(structs.replace(deployment, batch=1, memory=None, graphs=None))
            )
            if only is None or use.setting.module in only
        ]  # fmt: skip
        self.uses = pl.DataFrame(uses, schema=_USES, orient="row")

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The queries, from N = 1."""
        return self.from_baseline(1)

    def from_baseline(self, baseline: int) -> pl.DataFrame:
        """Return the queries with another baseline, over the grid from there."""
        grid_n = [baseline, *(n for n in self.grid if n > baseline)]
        baseline_column = pl.lit(baseline).cast(pl.Int64).alias("baseline")
        grid = pl.Series("grid", [grid_n], dtype=pl.List(pl.Int64))
        grids = grid.new_from_index(0, len(self._rows))
        frame = pl.DataFrame(self._rows, schema=ASKED_SCHEMA | _SHARES)
        return frame.with_columns(baseline_column, grids)

    def places_of(self, condition: pl.Expr, shape: tuple[int, ...]) -> Flags:
        """Return which modules meet a condition on the columns of `uses`, [deployments, places]."""
        flags, matching = np.zeros(shape, dtype=bool), self.uses.filter(condition)
        flags[matching["deployment"].to_numpy(), matching["place"].to_numpy()] = True
        return flags

    def _number(self, deployment: Deployment, use: ModuleUse) -> int:
        """Return the number of a module's query at the deployment's batch; add it if it is new."""
        batch = requests(deployment.batch, use.groups)
        kernel = deployment.library if use.role == MOE else None
        if use.setting.module == ATTENTION.name and (use.setting.head_dim or 0) <= WIDEST:
            kernel = deployment.decoder_kernel
        in_blocks = use.setting.dtype == "float8_block" and use.setting.module in DENSE
        dense_kernel = deployment.dense_kernel if in_blocks else None
        columns = {
            "platform": deployment.platform,
            "backend_version": use.backend_version,
            "kernel": kernel,
            "window": use.window,
            "nodes": use.nodes,
            "fewest": use.fewest,
            "dense_kernel": dense_kernel,
        }
        number = self._numbers.setdefault((use.setting, batch, *columns.values()), len(self._rows))
        if number == len(self._rows):
            setting = structs.replace(use.setting, batch=batch)
            shares = deployment.loads.shares if deployment.loads and setting.routing else None
            row = {"asked": number, **setting_row(setting), **columns, "shares": shares}
            self._rows.append(row)
        return number
