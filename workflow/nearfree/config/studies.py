"""The studies of studies.yaml: a module or model with one backend over its axes, as sweeps."""

from collections.abc import Iterator
from itertools import product
from typing import Annotated

from msgspec import Meta, Struct

from nearfree.core.modules.moe_ffn import first_full
from nearfree.core.plan import Sweep
from nearfree.core.protocols import Interleaved, Positive, Timing
from nearfree.core.setting import Controlled, Dtype, Mask, ModelRouting, Name, Setting
from nearfree.errors import ConfigError

Axis = Annotated[tuple[Positive, ...], Meta(min_length=1)]


class DenseShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Widths of a two-matrix FFN, in elements."""

    d_model: Positive
    d_ff: Positive


class MoeShape(DenseShape, frozen=True, kw_only=True):
    """Widths of gated experts, and how many there are: E."""

    experts: Positive


class AttentionShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query heads, key and value heads, and their width in elements."""

    heads: Positive
    kv_heads: Positive
    head_dim: Positive


class StudyBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="module"):
    """What every study says.

    `positions` is the grid of N, without points of more than `tokens_max` tokens b N; `edges` are
    N at which the work is expected to jump: each edge and the N after it join the grid. `set`
    names the group of studies that it belongs to, as config.yaml chooses among them.
    """

    set: Name = "default"
    backend: Name
    platforms: tuple[Name, ...]
    batch: Axis = (1,)
    positions: Axis
    edges: tuple[Positive, ...] = ()
    tokens_max: Positive | None = None
    baseline: Positive | None = None
    dtype: Dtype = "auto"
    protocol: Timing

    def settings(self) -> Iterator[Setting]:
        """Yield the study's settings, in the order of its axes."""
        raise NotImplementedError

    def sweeps(self) -> tuple[Sweep, ...]:
        """Return one sweep a setting; ConfigError for an axis or grid that cannot be swept."""
        self.check_axes()
        return tuple(
            Sweep(
                setting=setting,
                positions=self.grid(setting.batch),
                baseline=self.baseline
                or first_full(setting.routing, setting.experts, setting.top_k, setting.batch),
            )
            for setting in self.settings()
        )

    def check_axes(self) -> None:
        """Raise ConfigError for an axis that names a value twice."""
        for name in self.__struct_fields__:
            values = getattr(self, name)
            if isinstance(values, tuple) and len(set(values)) != len(values):
                raise ConfigError(
                    f"{name} {list(values)} names a value twice", remedy="List each value once"
                )

    def grid(self, batch: int) -> tuple[int, ...]:
        """Return the grid of N at a batch size; ConfigError if it does not rise."""
        if list(self.positions) != sorted(set(self.positions)):
            raise ConfigError(
                f"positions {list(self.positions)} are not strictly rising",
                remedy="List each N once, smallest first",
            )
        every = sorted({*self.positions, *self.edges, *(edge + 1 for edge in self.edges)})
        most = max(self.tokens_max or every[-1] * batch, batch)
        return tuple(n for n in every if n * batch <= most)


class DenseStudy(StudyBase, frozen=True, kw_only=True, tag="dense_ffn"):
    """A Dense FFN over batch sizes (paper, app. C.2)."""

    shape: DenseShape

    def settings(self) -> Iterator[Setting]:
        """Yield a setting a batch size."""
        for batch in self.batch:
            yield Setting(
                module="dense_ffn",
                backend=self.backend,
                dtype=self.dtype,
                batch=batch,
                d_model=self.shape.d_model,
                d_ff=self.shape.d_ff,
            )


class MoeStudy(StudyBase, frozen=True, kw_only=True, tag="moe_ffn"):
    """An MoE FFN over k under controlled routing (paper, app. C.3)."""

    shape: MoeShape
    routing: Annotated[tuple[Controlled, ...], Meta(min_length=1)]
    top_k: Axis
    block_size_m: Positive | None = None

    def settings(self) -> Iterator[Setting]:
        """Yield a setting a routing, batch size and k."""
        for routing, batch, top_k in product(self.routing, self.batch, self.top_k):
            yield Setting(
                module="moe_ffn",
                backend=self.backend,
                dtype=self.dtype,
                batch=batch,
                d_model=self.shape.d_model,
                d_ff=self.shape.d_ff,
                experts=self.shape.experts,
                top_k=top_k,
                routing=routing,
                block_size_m=self.block_size_m,
            )


class AttentionStudy(StudyBase, frozen=True, kw_only=True, tag="attention"):
    """Attention over context lengths L (paper, app. C.4)."""

    shape: AttentionShape
    context: Axis
    api: Name | None = None
    page_size: Positive | None = None
    cuda_graph: bool = False

    def settings(self) -> Iterator[Setting]:
        """Yield a setting a batch size and context."""
        for batch, context in product(self.batch, self.context):
            yield Setting(
                module="attention",
                backend=self.backend,
                dtype=self.dtype,
                batch=batch,
                context=context,
                heads=self.shape.heads,
                kv_heads=self.shape.kv_heads,
                head_dim=self.shape.head_dim,
                api=self.api,
                page_size=self.page_size,
                cuda_graph=self.cuda_graph,
            )


class ModelStudy(StudyBase, frozen=True, kw_only=True, tag="model"):
    """A model's whole forward over batch sizes, contexts and k (paper, sec. 5).

    `model` is a file of models/; `backend` runs its attention and `moe` its routed experts. `top_k`
    overrides the file's own k. `apart` is how its modules are timed by themselves, for what is
    predicted of it.
    """

    model: Name
    context: Axis
    mask: Mask = "causal"
    moe: Name | None = None
    routing: Annotated[tuple[ModelRouting, ...], Meta(min_length=1)] | None = None
    top_k: Axis | None = None
    apart: Interleaved = Interleaved(rounds=9, forwards=1)


ModuleStudy = DenseStudy | MoeStudy | AttentionStudy
Study = ModuleStudy | ModelStudy
