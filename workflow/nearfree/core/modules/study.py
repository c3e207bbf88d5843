"""The fields of every study in studies.yaml: a module or model on one backend, over its axes."""

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, structs

from nearfree.core.modules.routing import routing_baseline
from nearfree.core.names import Name
from nearfree.core.plan import Sweep, check_positions
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive, Timing
from nearfree.core.setting import FIELDS, Setting
from nearfree.errors import ConfigError

Axis = Annotated[tuple[Positive, ...], Meta(min_length=1)]
"""The values of an axis of a study."""
_CALLS = tuple(name for name, field in FIELDS.items() if field.role == "call")


class StudyBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="module"):
    """The fields of every study.

    `positions` is the grid of N; points of more than `tokens_max` tokens b N are left out. `edges`
    are N at which the work is expected to jump: each edge and the next N join the grid. `set` is
    the group of studies that the study belongs to; config.yaml selects among the groups. `axes` are
    the fields that the study's settings vary, the last one fastest. A study of a single module has
    its sizes in `shape`.
    """

    axes: ClassVar[tuple[str, ...]] = ("batch",)

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
        """Yield a setting for each combination of the study's axes."""
        fields: dict[str, Any] = structs.asdict(getattr(self, "shape"))  # noqa: B009 (a model has none)
        fields |= {"module": self.__struct_config__.tag, "backend": self.backend}
        fields |= {name: getattr(self, name) for name in ("dtype", *_CALLS) if hasattr(self, name)}
        for values in product(*(getattr(self, axis) for axis in self.axes)):
            yield Setting(**fields | dict(zip(self.axes, values, strict=True)))

    def sweeps(self) -> tuple[Sweep, ...]:
        """Return one sweep per setting; ConfigError for an invalid axis or grid."""
        self.check_axes()
        return tuple(
            Sweep(
                setting=setting,
                positions=self.grid(setting.batch),
                baseline=self.baseline
                or routing_baseline(setting.routing, setting.experts, setting.top_k, setting.batch),
            )
            for setting in self.settings()
        )

    def check_axes(self) -> None:
        """Raise ConfigError for an axis that lists a value twice."""
        for name in self.__struct_fields__:
            values = getattr(self, name)
            if isinstance(values, tuple) and len(set(values)) != len(values):
                raise ConfigError(
                    f"{name} {list(values)} names a value twice", remedy="List each value once"
                )

    def grid(self, batch: int) -> tuple[int, ...]:
        """Return the grid of N at a batch size; ConfigError if it is not increasing."""
        check_positions(self.positions)
        grid = sorted({*self.positions, *self.edges, *(edge + 1 for edge in self.edges)})
        tokens_max = max(self.tokens_max or grid[-1] * batch, batch)
        return tuple(n for n in grid if n * batch <= tokens_max)
