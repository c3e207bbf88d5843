"""Which layers and calls are followed over versions, and which releases are asked of each."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from nearfree.backends.records import BACKENDS
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.setting import Routing, Setting
from nearfree.derive.granularity.query_frame import Question
from nearfree.sources.packages import parse_release

_BACKENDS = {
    (module, backend.rules.package): backend.name
    for backend in reversed(BACKENDS)
    if backend.rules
    for module in backend.modules
}
"""The backend by which each package is asked of a module: of several the first."""


class Studied(Struct, frozen=True, kw_only=True):
    """A model's MoE layer or attention call; the setting's backend is that of each package."""

    model: str
    setting: Setting


def _layer(model: str, experts: int, top_k: int, d_ff: int, d_model: int) -> tuple[Studied, ...]:
    setting = Setting(module="moe_ffn", backend="any", dtype="bfloat16", d_model=d_model,
                      d_ff=d_ff, experts=experts, top_k=top_k)  # fmt: skip
    routings: tuple[Routing, ...] = ("balanced", "skewed")
    return tuple(Studied(model=model, setting=replace(setting, routing=r)) for r in routings)


def _call(model: str, heads: int, kv_heads: int) -> Studied:
    setting = Setting(module=ATTENTION.name, backend="any", dtype="bfloat16", context=4096,
                      heads=heads, kv_heads=kv_heads, head_dim=128)  # fmt: skip
    return Studied(model=model, setting=setting)


STUDIED = (
    *_layer("Qwen3-30B-A3B", 128, 8, 768, 2048),
    *_layer("Ling-2.0-mini", 256, 8, 512, 2048),
    *_layer("Mixtral-8x7B", 8, 2, 14336, 4096),
    _call("Qwen3-8B", 32, 8),
    _call("Ling-2.0-mini", 16, 4),
)
"""MoE layers and attention calls that are followed over versions."""
ON = ("h20", "h100", "h200", "b200")
"""Platforms that are asked of."""
Release = tuple[str, str, int]
"""Package, version, and its place among the package's versions."""


def ordered(releases: Sequence[str]) -> list[Release]:
    """Return releases by package, from the oldest version on."""
    parsed = sorted(map(parse_release, releases), key=lambda each: (each[0], Version(each[1])))
    versions: dict[str, list[str]] = {}
    for package, version in parsed:
        versions.setdefault(package, []).append(version)
    return [
        (package, version, place)
        for package, each in versions.items()
        for place, version in enumerate(each, start=1)
    ]


def questions(
    each: Studied, platform: str, releases: Sequence[Release]
) -> Iterator[tuple[Release, Question]]:
    """Yield what is asked of every release that speaks of a setting's module, with the release."""
    for release in releases:
        package, version, _ = release
        backend = _BACKENDS.get((each.setting.module, package))
        if backend is not None:
            setting = replace(each.setting, backend=backend)
            yield release, Question(platform=platform, setting=setting, version=version)
