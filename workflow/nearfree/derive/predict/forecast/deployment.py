"""A model on a platform under one serving condition, and the questions that its modules ask."""

from collections.abc import Sequence
from functools import cached_property

import polars as pl
from msgspec import Struct, structs

from nearfree.backends.decode_kernels import WIDEST
from nearfree.backends.moe_kernels import CUTLASS, TRTLLM
from nearfree.backends.names import BackendRelease
from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.backends.records import BY_NAME
from nearfree.config.loads import MeasuredLoads
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.dense_ffn import DENSE_FFN, GEMM
from nearfree.core.modules.routing import first_full
from nearfree.core.parallel import ALONE, Parallel
from nearfree.core.precision import PLAIN, Dtype, Precision, Product, uniform
from nearfree.core.protocols import Positive
from nearfree.core.routing_names import Routing
from nearfree.decoders.collectives import collectives
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.engines import ENGINES, FUSED, SGLANG, VLLM
from nearfree.decoders.modules import MOE, ModuleUse, modules, requests
from nearfree.derive.engine_step.form import reached
from nearfree.derive.granularity.graphs import Graphs
from nearfree.derive.granularity.query_frame import ASKED_SCHEMA
from nearfree.derive.memory import Memory
from nearfree.derive.predict.forecast.left_out import left_out
from nearfree.derive.tables.settings import setting_row
from nearfree.errors import ConfigError

_SHARES = {"shares": pl.List(pl.List(pl.Float64))}
"""What questions say besides: measured shares, [layers, E]."""
_USES = {
    "deployment": pl.Int64,
    "place": pl.Int64,
    "role": pl.String,
    "count": pl.Int64,
    "main": pl.Boolean,
    "module": pl.String,
    "asked": pl.Int64,
}
"""`place` is that of the module in the forward; `module` is of which kind it is."""


_ROUNDS_BEFORE_SENDING = "0.19.0"
"""The oldest release of vLLM read that rounds rows before they are sent to experts, but for those
of FlashInfer's CUTLASS in blocks: vllm 0.19.0 and 0.33.0, in vllm/model_executor/layers/fused_moe,
prepare_finalize/naive_dp_ep.py:16-40 and 26-61, experts/flashinfer_cutlass_moe.py:124 of 0.33.0."""
_EIGHT_BIT_FORMAT: dict[Dtype, Dtype] = {"float8_block": "float8", "mxfp8": "float8"}
_DENSE = (GEMM.name, DENSE_FFN.name)
MOST_POINTS = 1_000_000
"""Points T(N) that may be asked about at once: deployments times the N that are looked at."""


class Deployment(Struct, frozen=True, kw_only=True):
    """One model on one platform: backends, b, L, routing, element type and GPUs.

    `moe` and `routing` are None where no layer has experts, and `server` is then the engine that is
    named to serve it, None where none is; `loads` are the shares behind a routing
    that names them; `library` runs the experts where it picks its own tiles, in formats whose
    blocks nothing says; `decoder_kernel` is the kernel by which the engine decodes where nobody
    names what runs attention, by its name in public tables, `other_kernel` what it then decodes
    by a kernel for which other tiles stand, and which that is; `dense` is what runs the dense
    products of quantised weights, None for torch or where there are none; `precision` None is the
    model file's own dtype throughout; `memory` None is not known. `served` holds where an engine
    runs its steps, and not where a forward is measured by itself. Steps are padded to `graphs`;
    None where no engine runs them, or its graphs are not read. `revision` is the commit of a model
    of the Hugging Face Hub. `positions` is how many the model's file allows a request to have, None
    where it does not say. `assembled` says that how many GPUs a machine holds is its builder's
    choice. `instead` are the options that ask for experts whose kernels are known, where those of
    `moe` are not. `stand_in` says that Triton's kernel of experts stands for another that
    `moe` may run. `dense_kernel` runs products in blocks of float8 where the engine's choice is
    another for this model, and `by_file` the experts, by what its file says, where their T(N) is
    not read. A node has `node_gpus`; all GPUs lie on one where it is None.
    `direct_gpus` are taken to reach each other over PCIe; None where NVLink joins them, and
    `on_cpu` holds where it is no GPU. `class_note` is what is to be said of a release that runs the
    model without a class of its own.
    """

    decoder: Decoder
    platform: str
    attention: BackendRelease
    moe: BackendRelease | None = None
    server: BackendRelease | None = None
    dense: BackendRelease | None = None
    routing: Routing | None = None
    loads: MeasuredLoads | None = None
    batch: Positive = 1
    context: Positive = 4096
    precision: Precision | None = None
    parallel: Parallel = ALONE
    library: str | None = None
    decoder_kernel: str | None = None
    other_kernel: str | None = None
    memory: Memory | None = None
    served: bool = False
    graphs: Graphs | None = None
    revision: str | None = None
    positions: int | None = None
    assembled: bool = False
    instead: tuple[str, ...] = ()
    stand_in: bool = False
    drafts_plain: bool = False
    dense_kernel: str | None = None
    by_file: str | None = None
    node_gpus: int | None = None
    direct_gpus: int | None = None
    on_cpu: bool = False
    class_note: str | None = None

    @property
    def engine(self) -> BackendRelease:
        """What runs its steps: the engine of the experts, else the one that is named, else vLLM.

        It says how weights are cut, which collectives run, how attention is called, and what a step
        takes besides modules.
        """
        engines = (
            release for release in (self.moe, self.server) if release and release.name in ENGINES
        )
        return next(engines, BackendRelease(VLLM.name))

    @property
    def too_long(self) -> str | None:
        """That its context is longer than its model is made for, None where it is not."""
        if self.positions is None or self.context < self.positions:
            return None
        return (
            f"{self.context:,} cached positions and a new one are more than the "
            f"{self.positions:,} that the model's file allows: engines refuse them unless told "
            "otherwise (vLLM by VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)"
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What T(N) of its forward leaves out, and a context that its model is not made for."""
        return left_out(self)

    @property
    def moe_kernel(self) -> str | None:
        """The kernel or library whose T(N) its experts have, None where blocks are read."""
        return BY_PUBLIC_NAME.get(self.library or "", self.library)

    @property
    def fused(self) -> int:
        """The experts of a layer where a shared one runs as one of the routed ones, 0 elsewhere."""
        experts, fused = self.decoder.experts, FUSED.get(self.decoder.model_type)
        if not experts or not fused or not self.served or self.engine.name != SGLANG.name:
            return 0
        since, experts_count = fused
        is_fused = (
            reached(self.engine.version, since)
            and experts_count in (None, experts.experts)
            and experts.shared_d_ff == experts.d_ff
            and self.parallel.ep == 1
            and self.formats.experts.weights == self.formats.shared_experts.weights
            and BY_PUBLIC_NAME.get(self.library or "") != TRTLLM
        )
        return experts.experts + 1 if is_fused else 0

    @property
    def sent(self) -> Dtype | None:
        """In what numbers rows are sent to experts, None for the plain ones."""
        rows = self.formats.experts.activations
        rounds_before_sending = self.engine.name == VLLM.name and reached(
            self.engine.version, _ROUNDS_BEFORE_SENDING
        )
        rounded_later = rows == "float8_block" and BY_PUBLIC_NAME.get(self.library or "") == CUTLASS
        return (
            None
            if rows in PLAIN or rounded_later or not rounds_before_sending
            else _EIGHT_BIT_FORMAT.get(rows, rows)
        )

    @property
    def full_baseline(self) -> int:
        """The paper's baseline N (app. C.3): where balanced routing has woken every expert."""
        experts = self.decoder.experts
        if experts is None:
            return 1
        return first_full(self.routing, experts.experts, experts.top_k, self.batch)

    @property
    def formats(self) -> Precision:
        """In what numbers it computes."""
        return self.precision or uniform(self.decoder.dtype)

    @property
    def main(self) -> Product:
        """The formats of the products that most weights enter: the experts', or the FFN's."""
        return self.formats.experts if self.decoder.moe_layers else self.formats.ffn

    @property
    def said(self) -> dict[str, Dtype]:
        """Its precision as answers name it: weights, activations, kv."""
        return self.formats.said("experts" if self.decoder.moe_layers else "ffn")

    @property
    def about(self) -> dict[str, object]:
        """What is asked about, in the words of the command line."""
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
        """Return the modules of a rank's forward, and the collectives between ranks."""
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
    """Return a module with the call that an engine makes of attention."""
    if use.setting.module != ATTENTION.name:
        return use
    return structs.replace(use, setting=structs.replace(use.setting, api=api))


class Questions:
    """What the modules of some deployments ask, each distinct question once.

    Parameters
    ----------
    deployments
        The deployments, in the order in which answers name them.
    grid
        N, rising from 1: the same for all.

    Raises
    ------
    ConfigError
        They are more than MOST_POINTS, which memory may not hold.
    """

    def __init__(self, deployments: Sequence[Deployment], grid: Sequence[int]) -> None:
        if len(deployments) * len(grid) > MOST_POINTS:
            raise ConfigError(
                f"{len(deployments)} deployments with {len(grid)} N each are asked about",
                remedy=f"Ask about {MOST_POINTS} points at most: fewer deployments, or smaller N",
            )
        self.deployments, self.grid = deployments, list(grid)
        self._rows: list[dict[str, object]] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._uses: dict[Deployment, tuple[ModuleUse, ...]] = {}
        uses = [
            (index, place, use.role, use.count, use.main, use.setting.module,
             self._number(deployment, use))
            for index, deployment in enumerate(deployments)
            for place, use in enumerate(self._uses_at_one(deployment))
        ]  # fmt: skip
        self.uses = pl.DataFrame(uses, schema=_USES, orient="row")

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The questions, from N = 1."""
        return self.from_baseline(1)

    def from_baseline(self, baseline: int) -> pl.DataFrame:
        """Return the questions with another baseline, over the grid from there."""
        grid_n = [baseline, *(n for n in self.grid if n > baseline)]
        baseline_column = pl.lit(baseline).cast(pl.Int64).alias("baseline")
        grid = pl.Series("grid", [grid_n], dtype=pl.List(pl.Int64))
        grids = grid.new_from_index(0, len(self._rows))
        frame = pl.DataFrame(self._rows, schema=ASKED_SCHEMA | _SHARES)
        return frame.with_columns(baseline_column, grids)

    def _uses_at_one(self, deployment: Deployment) -> tuple[ModuleUse, ...]:
        """Return the modules of a deployment's forward at batch 1: other batches have the same."""
        key = structs.replace(deployment, batch=1, memory=None, graphs=None)
        if key not in self._uses:
            self._uses[key] = key.uses()
        return self._uses[key]

    def _number(self, deployment: Deployment, use: ModuleUse) -> int:
        """Return the number of a module's question at the deployment's batch."""
        batch = requests(deployment.batch, use.groups)
        kernel = deployment.library if use.role == MOE else None
        if use.setting.module == ATTENTION.name and (use.setting.head_dim or 0) <= WIDEST:
            kernel = deployment.decoder_kernel
        in_blocks = use.setting.dtype == "float8_block" and use.setting.module in _DENSE
        dense_kernel = deployment.dense_kernel if in_blocks else None
        question = (
            *(deployment.platform, use.setting, use.backend_version, use.window, use.nodes),
            *(use.fewest, batch, kernel, dense_kernel),
        )
        number = self._numbers.get(question)
        if number is None:
            self._numbers[question] = number = len(self._rows)
            setting = structs.replace(use.setting, batch=batch)
            columns = {
                "platform": deployment.platform,
                "backend_version": use.backend_version,
                "kernel": kernel,
                "window": use.window,
                "nodes": use.nodes,
                "fewest": use.fewest,
                "dense_kernel": dense_kernel,
                "shares": deployment.loads.shares if deployment.loads and setting.routing else None,
            }
            self._rows.append({"asked": number, **setting_row(setting), **columns})
        return number
