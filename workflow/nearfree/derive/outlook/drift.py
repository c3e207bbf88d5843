"""Table `version_drift`: each recorded release's rules for a layer or call, with their changes.

A change is a change of the granularity at the baseline: of the kernel path, the block or tile, the
range over which it holds, or its source (a tuned file or the fallback). A rule that only moved to
other lines is not a change.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any

import polars as pl
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from nearfree.backends.records import BACKENDS
from nearfree.core.modules.attention import ATTENTION, AttentionQuestion
from nearfree.core.modules.moe_ffn import MOE_FFN, MoeQuestion
from nearfree.core.routing_names import Routing
from nearfree.core.setting import Setting
from nearfree.derive.granularity.facts import sheet_facts, with_facts
from nearfree.derive.granularity.query_frame import Question, asked_frame
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.columns import (
    SETTING_COLUMNS,
    amount,
    count,
    finite,
    flag,
    text,
)
from nearfree.derive.tables.schema import Table
from nearfree.errors import NearfreeError
from nearfree.hardware.platforms import Platform
from nearfree.sources.packages import parse_release

_BACKENDS: Mapping[tuple[str, str], str] = {
    (module, backend.rules.package): backend.name
    for backend in reversed(BACKENDS)
    if backend.rules
    for module in backend.modules
    if module in (ATTENTION.name, MOE_FFN.name)
}
"""The backend that stands for a package in a query of a module: the first of several. Dense
products have rules only in quantised formats, which no study here has."""
DRIFT_PLATFORMS = ("h20", "h100", "h200", "b200")
"""Platforms that are compared."""
Release = tuple[str, str, int]
"""Package, version, and its rank among the package's versions, from 1."""
_COMPARED = {
    "path": "path",
    "m_moe": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "tau": "tau",
    "tile_rows": "tile rows",
    "m_attn": "M_attn",
    "source": "source",
}
"""The compared columns, with their names in the text of a change."""
_RULES = (*_COMPARED, "rule", "unread")
"""Path, block or tile, the range over which it holds, and its rule; or why there are no rules."""
Row = dict[str, Any]


class Study(Struct, frozen=True, kw_only=True):
    """A model's MoE layer or attention call; its backend is replaced by each package's."""

    model: str
    setting: Setting


def _layer(model: str, experts: int, top_k: int, d_ff: int, d_model: int) -> tuple[Study, ...]:
    setting = Setting(module="moe_ffn", backend="any", dtype="bfloat16", d_model=d_model,
                      d_ff=d_ff, experts=experts, top_k=top_k)  # fmt: skip
    routings: tuple[Routing, ...] = ("balanced", "skewed")
    return tuple(Study(model=model, setting=replace(setting, routing=r)) for r in routings)


def _call(model: str, heads: int, kv_heads: int) -> Study:
    setting = Setting(module=ATTENTION.name, backend="any", dtype="bfloat16", context=4096,
                      heads=heads, kv_heads=kv_heads, head_dim=128)  # fmt: skip
    return Study(model=model, setting=setting)


STUDIES = (
    *_layer("Qwen3-30B-A3B", 128, 8, 768, 2048),
    *_layer("Ling-2.0-mini", 256, 8, 512, 2048),
    *_layer("Mixtral-8x7B", 8, 2, 14336, 4096),
    _call("Qwen3-8B", 32, 8),
    _call("Ling-2.0-mini", 16, 4),
)
"""MoE layers and attention calls that are compared over versions."""


def ordered(releases: Sequence[str]) -> list[Release]:
    """Return releases by package, from the oldest version on."""
    parsed = sorted(map(parse_release, releases), key=lambda pair: (pair[0], Version(pair[1])))
    return [
        (package, version, place)
        for package, versions in groupby(parsed, key=lambda pair: pair[0])
        for place, (_, version) in enumerate(versions, start=1)
    ]


def questions(
    studied: Study, platform: str, releases: Sequence[Release]
) -> Iterator[tuple[Release, Question]]:
    """Yield the query of a setting to every release whose package has the module."""
    for release in releases:
        package, version, _ = release
        backend = _BACKENDS.get((studied.setting.module, package))
        if backend is not None:
            setting = replace(studied.setting, backend=backend)
            yield release, Question(platform=platform, setting=setting, version=version)


def granularity(row: Row, resolver: Resolver) -> Row:
    """Return the block or tile of a query at its baseline, by the names of `_RULES` that it has.

    The row is a query with the facts of its platform.
    """
    try:
        return _moe(row, resolver) if row["module"] == "moe_ffn" else _attention(row, resolver)
    except NearfreeError as error:
        return {"unread": error.what}


def change(before: Row, after: Row) -> str | None:
    """Return the difference between two releases' rules, in words; None if there is none."""
    if before["unread"] is not None or after["unread"] is not None:
        return _refusal_change(before["unread"], after["unread"])
    words = [
        f"{word} {_shown(name, before[name])} -> {_shown(name, after[name])}"
        for name, word in _COMPARED.items()
        if before[name] != after[name]
    ]
    if not words:
        return None
    source = f" ({after['source']})" if before["source"] == after["source"] is not None else ""
    return ", ".join(words) + source


def _refusal_change(before: str | None, after: str | None) -> str | None:
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
    names = [name for name in AttentionQuestion.__struct_fields__ if name not in ("most", "window")]
    values = {name: row[name] for name in names}
    steps = resolver.attention(AttentionQuestion(**values, most=max(row["grid"])))
    tile = steps.at(1)
    return {
        "path": tile.path,
        "tile_rows": tile.tile,
        "m_attn": steps.last_alike(),
        "rule": steps.evidence(1),
    }


VERSION_DRIFT = Table(
    name="version_drift",
    row="one release's rules for one layer or call on one platform",
    key=("model", "platform", "setting_key", "version"),
    formula="the rules of each release at the same layer or call",
    code="nearfree.derive.outlook.drift",
    body={
        "platform": text("the kind of machine"),
        **SETTING_COLUMNS,
        "model": text("the model of the layer or call"),
        "package": text("the backend's package"),
        "version": text("its version"),
        "place": count("rank among the package's versions, from the oldest"),
        "baseline": count("the N that ratios refer to"),
        "path": text("kernel path at the baseline", nullable=True),
        "source": text("source of the block: a tuned file, or the fallback", nullable=True),
        "m_moe": count("M_moe at the baseline, tokens", nullable=True),
        "block_n": count("BLOCK_SIZE_N there, where a rule says it", nullable=True),
        "block_k": count("BLOCK_SIZE_K there, where a rule says it", nullable=True),
        "tau": count("the last number of tokens with that block and path; none: no limit",
                     nullable=True),
        "tile_rows": count("rows of a query tile at N = 1", nullable=True),
        "m_attn": count("the last N with the tiles of N = 1; none: no limit", nullable=True),
        "rule": text("file, lines and digest of that rule", nullable=True),
        "epsilon": amount("tolerance of the work model"),
        "n_max_resolved": amount("N_max by principle_resolved", nullable=True),
        "unbounded": flag("whether that law sets no limit on N"),
        "n_max_work": amount("N_max by work_model, on a grid", nullable=True),
        "grid_end": count("the largest N that the work model is asked of; it is asked of each N up "
                          "to 32, from there on of eight to an octave"),
        "refusal_resolved": text("the missing rule or fact", nullable=True),
        "refusal_work": text("the missing rule, fact or constant", nullable=True),
        "previous": text("the version before, of those recorded", nullable=True),
        "differs": flag("whether the granularity differs from that version's", nullable=True),
        "change": text("how it differs", nullable=True),
    },
)  # fmt: skip
GRID_END = 1024


def version_drift(
    studied: Sequence[Study],
    releases: Sequence[str],
    sheets: Mapping[str, Platform],
    platforms: pl.DataFrame,
    *,
    answerer: Answerer,
    resolver: Resolver,
    epsilon: float,
    platform_names: Sequence[str] = DRIFT_PLATFORMS,
) -> pl.DataFrame:
    """Return the rows of `version_drift`, with `from_ids`.

    Parameters
    ----------
    studied
        MoE layers and attention calls.
    releases
        Recorded releases, as package==version.
    answerer
        Answers by the predictors; it is given the facts of the datasheets.
    epsilon
        Tolerance of the work model.
    platform_names
        Platforms to compare on.
    """
    facts = sheet_facts(sheets, platforms)
    queries = [
        (call.model, *release, question)
        for call in studied
        for platform in platform_names
        for release, question in questions(call, platform, ordered(releases))
    ]
    frame = asked_frame((question for *_, question in queries), GRID_END)
    answers = answerer.on(facts).answers(frame, [epsilon], ["principle_resolved", "work_model"])
    answer_of = {(row["asked"], row["predictor"]): row for row in answers.to_dicts()}
    rows: list[Row] = []
    newest: dict[tuple[str, str, str], Row] = {}
    for asked, query in zip(with_facts(frame, facts).to_dicts(), queries, strict=True):
        model, package, version, place, _ = query
        law, work = (
            answer_of[asked["asked"], name] for name in ("principle_resolved", "work_model")
        )
        row = asked | dict.fromkeys(_RULES) | granularity(asked, resolver)
        row |= {
            "model": model,
            "package": package,
            "version": version,
            "place": place,
            "epsilon": epsilon,
            "grid_end": asked["grid"][-1],
            "n_max_resolved": finite(law["n_max"]),
            "unbounded": law["n_max"] == inf,
            "n_max_work": work["n_max"],
            "refusal_resolved": law["refusal"],
            "refusal_work": work["refusal"],
            "from_ids": [*filter(None, [asked["fact_id"]]), *(work["calibration"] or ())],
        }
        key = model, row["platform"], row["setting_key"]
        rows.append(row | _since(newest.get(key), row))
        newest[key] = row
    return VERSION_DRIFT.frame(rows)


def _since(previous: Row | None, row: Row) -> Row:
    """Return the change of a release's rules from those of the previous one; none of the first."""
    if previous is None:
        return dict.fromkeys(("previous", "differs", "change"))
    difference = change(previous, row)
    return {
        "previous": previous["version"],
        "differs": difference is not None,
        "change": difference,
    }
