"""One release's granularity of a layer or call at its baseline, and how releases differ."""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from nearfree.backends.records import BACKENDS
from nearfree.core.modules.attention import ATTENTION, AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.setting import Routing, Setting
from nearfree.derive.granularity.query_frame import Question
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import NearfreeError
from nearfree.sources.packages import parse_release

_BACKENDS = {
    (module, backend.rules.package): backend.name
    for backend in reversed(BACKENDS)
    if backend.rules
    for module in backend.modules
}
"""The backend by which each package is asked of a module: of several the first."""
ON = ("h20", "h100", "h200", "b200")
"""Platforms that are asked of."""
Release = tuple[str, str, int]
"""Package, version, and its place among the package's versions."""
RULES_SCHEMA = {
    "path": pl.String,
    "source": pl.String,
    "m_moe": pl.Int64,
    "block_n": pl.Int64,
    "block_k": pl.Int64,
    "tau": pl.Int64,
    "tile_rows": pl.Int64,
    "m_attn": pl.Int64,
    "rule": pl.String,
    "unread": pl.String,
}
"""Path, block or tile, how far it holds, and its place; or why there are no rules."""
_WORDS = {
    "path": "path",
    "m_moe": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "tau": "tau",
    "tile_rows": "tile rows",
    "m_attn": "M_attn",
    "source": "source",
}
"""What a change is one of, and what it is called."""
Row = dict[str, Any]


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


def said(row: Row, resolver: Resolver) -> Row:
    """Return what the rules say of a question: the columns of `RULES_SCHEMA`.

    Parameters
    ----------
    row
        A question with the facts of its platform.
    resolver
        The rules of releases.
    """
    try:
        return _moe(row, resolver) if row["module"] == "moe_ffn" else _attention(row, resolver)
    except NearfreeError as error:
        return {"unread": error.what}


def change(before: Row, after: Row) -> str | None:
    """Return how one release's rules differ from another's, in words; None if they do not."""
    if before["unread"] is not None or after["unread"] is not None:
        return _of_refusals(before["unread"], after["unread"])
    words = [
        f"{word} {_shown(name, before[name])} -> {_shown(name, after[name])}"
        for name, word in _WORDS.items()
        if before[name] != after[name]
    ]
    if not words:
        return None
    where = f" ({after['source']})" if before["source"] == after["source"] is not None else ""
    return ", ".join(words) + where


def _of_refusals(before: str | None, after: str | None) -> str | None:
    if before is not None and after is not None:
        return None
    return "a refusal -> an answer" if after is None else f"an answer -> a refusal: {after}"


def _shown(name: str, value: object) -> object:
    if value is not None:
        return value
    return "no limit" if name in ("tau", "m_attn") else "not said"


def _moe(row: Row, resolver: Resolver) -> Row:
    steps = resolver.moe(MoeQuestion(**{name: row[name] for name in MoeQuestion.__struct_fields__}))
    tokens = row["batch"] * row["baseline"]
    block = steps.at(tokens)
    return {
        "path": block.path,
        "source": block.source,
        "m_moe": block.value,
        "block_n": block.block_n,
        "block_k": block.block_k,
        "tau": steps.tau(tokens),
        "rule": steps.evidence(tokens),
    }


def _attention(row: Row, resolver: Resolver) -> Row:
    names = [name for name in AttentionQuestion.__struct_fields__ if name != "most"]
    asked = {name: row[name] for name in names}
    steps = resolver.attention(AttentionQuestion(**asked, most=max(row["grid"])))
    tile = steps.at(1)
    return {
        "path": tile.path,
        "tile_rows": tile.tile,
        "m_attn": steps.last_alike(),
        "rule": steps.evidence(1),
    }
