"""Which forwards are tried: block edges, path edges, and every N of two settings."""

from collections.abc import Iterable, Iterator

from conftest import make_setting
from msgspec import Struct
from nearfree.core.precision import Dtype
from nearfree.core.routing_names import Routing
from nearfree.core.setting import Setting

EDGES = (1, 2, 8, 9, 16, 17, 33, 65)
FAR = (96, 97, 128, 129, 512, 513)
EXACT = 1e-5
HALF = 2**-9
"""Four roundings to float16, half a unit in the last place each."""


class Release(Struct, frozen=True, kw_only=True):
    """A release, and what of it is tried.

    `width` is a d_model and d_ff that its tiles divide; `block_rows` all block sizes of its
    fallback rule; `tuned` experts, d_ff and N around the steps of a tuned file; `own_align` the
    experts from which its own kernels align; `error` the largest error, of the largest output.
    """

    package: str
    version: str
    width: int
    block_rows: frozenset[int]
    tuned: tuple[int, int, tuple[int, ...]]
    own_align: int | None = None
    error: float = EXACT

    def __str__(self) -> str:
        return f"{self.package}-{self.version}"


RELEASES = (
    Release(
        package="vllm",
        version="0.9.1",
        width=64,
        block_rows=frozenset({16, 64}),
        tuned=(128, 192, (40, 41, 57)),
        own_align=224,
    ),
    Release(
        package="vllm",
        version="0.20.2",
        width=128,
        block_rows=frozenset({16, 32, 64, 128}),
        tuned=(512, 64, (1, 2, 3, 4, 129)),
    ),
    Release(
        package="sglang",
        version="0.5.9",
        width=64,
        block_rows=frozenset({16, 64}),
        tuned=(512, 64, (513,)),
        error=HALF,  # its kernels round to float16 whatever the inputs are
    ),
)


class Point(Struct, frozen=True):
    """One forward of a setting over N tokens."""

    setting: Setting
    n: int


def points(release: Release) -> Iterator[Point]:
    """Yield the forwards that are tried of a release."""

    def over(
        positions: Iterable[int],
        experts: int,
        top_k: int,
        routing: Routing,
        *,
        d_model: int = release.width,
        d_ff: int = release.width,
        dtype: Dtype = "float32",
    ) -> Iterator[Point]:
        setting = make_setting(
            module="moe_ffn",
            backend=release.package,
            dtype=dtype,
            d_model=d_model,
            d_ff=d_ff,
            experts=experts,
            top_k=top_k,
            routing=routing,
        )
        return (Point(setting, n) for n in positions)

    yield from over(range(1, 67), 8, 1, "skewed")
    yield from over(range(1, 21), 4, 1, "balanced")
    for top_k in (2, 4):
        yield from over(EDGES, 8, top_k, "balanced")
        yield from over(EDGES, 8, top_k, "skewed")
    yield from over((1, 9, 33, 65), 8, 8, "skewed")
    yield from over((1, 17), 16, 8, "balanced")
    yield from over(FAR, 8, 1, "skewed")
    yield from over((16, 17, 65), 64, 1, "skewed")
    yield from over((8, 9), 64, 2, "balanced")
    experts, d_ff, positions = release.tuned
    yield from over(positions, experts, 1, "skewed", d_model=128, d_ff=d_ff, dtype="float16")
    if release.own_align:
        yield from over((16,), release.own_align, 2, "balanced")
