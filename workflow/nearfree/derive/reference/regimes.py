"""Regimes, the evidence classes of an answer, and T(N) by the groups of each regime.

R3: the kernel's own curve of the shape, of this release or another. R2: curves of the kernel on the
GPU with other shapes. R1: curves of a sibling GPU. R0: constants only, from all GPUs on which the
kernel was measured, or those shared by its family.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, structs
from packaging.version import Version

from nearfree.backends.public_kernels import MARLINS, UNLIKE_A_STEP
from nearfree.backends.records import BACKENDS
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference import gates
from nearfree.derive.reference.group_times import has_routing, nearest_curves, times_by_group
from nearfree.derive.reference.groups import Constants, Group, Key, keys_of, version_of
from nearfree.derive.reference.siblings import Chip, alike_built, carried_ratio, siblings
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.families import OF_KERNELS
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import selected_features
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.mla import MLA_CACHED
from nearfree.derive.work_model.prepare import Prepared, prepare

R0, R1, R2, R3 = REGIMES = ("R0", "R1", "R2", "R3")
"""From no curves of the GPU and kernel to the shape's own curve."""
REGIME_MEANINGS = {
    R0: "nothing is known of this kernel and format on this GPU: constants of others",
    R1: "a sibling GPU is known: its constants and residuals",
    R2: "this GPU and kernel are known, the shape is new: form and residual",
    R3: "this kernel and shape were measured: its own curve",
}
NEAREST_TEXT = r" \(nearest [^()]*\)$"
"""The end of an answer's `constants`: the curves with most weight in it."""
NEAREST_RELEASE = r" \(nearest [^()]*? of ([^(),]+)[,)]"
"""The release of the first of them."""
_ENGINES = {backend.name: backend.engine for backend in BACKENDS if backend.engine is not None}
"""The engine of each backend that runs an engine's products."""
_KERNEL_COLUMNS = ("platform", "backend", "backend_version", "kernel", "api", "dtype", "kv_dtype")
"""The columns that distinguish the kernels of questions."""


AT_ONE_POSITION = (ATTENTION_CACHED.name, MLA_CACHED.name)
"""Families whose kernels were measured at one position only: for more positions there is only the
form with their constants."""


class GroupTimes(Struct, frozen=True, kw_only=True):
    """T(N) of the questions of one part, `latency_us` [rows, grid], with the evidence of each row.

    `groups` are the groups used, in R0 their constants only; `curves` are the indices of each row's
    nearest curves in the first group, none in R0. `at_one_position` says that T(1) follows from
    curves of this GPU or a sibling, and more positions from the form only: R0.
    """

    latency_us: Array
    regime: list[str]
    groups: tuple[Group | Constants, ...]
    curves: list[tuple[int, ...]]
    at_one_position: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels whose curves or constants are used; the backend of an unnamed one."""
        return tuple(dict.fromkeys(group.key.kernel or group.key.backend for group in self.groups))

    def select(self, rows: Flags) -> "GroupTimes":
        """Return T(N) of the flagged rows."""
        (indices,) = np.nonzero(rows)
        return structs.replace(
            self,
            latency_us=self.latency_us[indices],
            regime=[self.regime[index] for index in indices],
            curves=[self.curves[index] for index in indices],
        )

    def texts(self) -> list[str]:
        """Return a text per row: the curves of its constants, and its nearest curves."""
        first = self.groups[0]
        platforms = ", ".join(dict.fromkeys(group.key.platform for group in self.groups))
        caches = dict.fromkeys(
            f" over a {group.key.kv_dtype} cache"
            for group in self.groups
            if group.key.family in OF_KERNELS and group.key.kv_dtype
        )
        kernels = f"{first.key.family} by {', '.join(self.kernels)}"
        subject = f"{kernels} on {platforms}{' and'.join(caches)}"
        count = sum(group.count for group in self.groups)
        names = first.curve_texts if isinstance(first, Group) else []
        return [
            f"{regime}: {subject}, {count} curves"
            + (f" (nearest {', '.join(names[curve] for curve in nearest)})" if nearest else "")
            for regime, nearest in zip(self.regime, self.curves, strict=True)
        ]


class Reference:
    """Groups of kernels by their keys, and T(N) of questions by them.

    Parameters
    ----------
    groups
        The groups by their keys.
    chips
        The chip of each platform, by which siblings are known (`siblings.siblings`).
    constants
        Returns the constants of a group without unpacking its curves; by default they come from
        `groups`.
    """

    def __init__(
        self,
        groups: Mapping[Key, Group],
        chips: Mapping[str, Chip],
        constants: Callable[[Key], Constants] | None = None,
    ) -> None:
        self.groups, self._chips = groups, chips
        self._constants = constants or (lambda key: groups[key].constants)
        self._keys_by_pattern: dict[tuple[int, tuple[str | None, ...]], list[Key]] = {}
        for key in groups:
            for pattern in _patterns(key):
                self._keys_by_pattern.setdefault(pattern, []).append(key)

    def without(self, platform: str, *, siblings: bool = False) -> "Reference":
        """Return the groups of all other platforms; with `siblings`, without its siblings, too."""
        kept = {
            key: group
            for key, group in self.groups.items()
            if key.platform != platform
            and not (siblings and self._siblings(platform, key.platform))
        }
        return Reference(kept, self._chips)

    def _siblings(self, one: str, other: str) -> bool:
        """Return whether two platforms are siblings."""
        return siblings(self._chip(one), self._chip(other))

    def _carried_ratios(self, part: Prepared, sibling: Key) -> Array:
        """Return the balance of each question's chip over a sibling's, 1 if alike, [rows, 1]."""
        there = self._chip(sibling.platform)
        platforms = part.rows["platform"].to_list()
        return np.array([[carried_ratio(self._chip(name), there)] for name in platforms])

    def _chip(self, platform: str) -> Chip:
        return self._chips.get(platform, Chip(None, None))

    def covers(self, part: Prepared) -> Flags:
        """Return which questions have groups, [rows]."""
        return np.array([bool(self._choose(query)[1]) for query in _queries(part)], dtype=bool)

    def times(self, part: Prepared) -> Iterator[tuple[Flags, GroupTimes]]:
        """Yield T(N) of the rows that have groups, with flags of these rows."""
        rows_by_choice: dict[tuple[str, tuple[Key, ...]], list[int]] = {}
        choose = cache(self._choose)
        for row, query in enumerate(_queries(part)):
            rows_by_choice.setdefault(choose(query), []).append(row)
        for (regime, keys), rows in rows_by_choice.items():
            if not keys:
                continue
            flags = np.zeros(part.rows.height, dtype=bool)
            flags[rows] = True
            yield flags, self._times(select_rows(part, flags), regime, keys)

    def _choose(self, query: "_Query") -> tuple[str, tuple[Key, ...]]:
        """Return the regime of a query, and the keys of the groups that answer it.

        For products without a named kernel, curves that are unlike an engine's step are left out,
        and the engine's own library comes before others; where weights alone are quantised, another
        engine's curves are those of another kernel. For decoding, only the kernel itself
        counts, on this GPU or a sibling. For experts, kernels are of gated or ungated experts as
        the query is.
        """
        key, release = gates.key_for_gate(query.key, gated=query.gated), query.release
        candidates = gates.keys_for_gate(self._candidates(key), gated=query.gated)
        if not candidates and key.family in OF_KERNELS:
            return R0, self._over_other_caches(key)
        if key.family == ATTENTION_CACHED.name:
            candidates = [
                other
                for other in candidates
                if other.kernel == key.kernel
                and (other.platform == key.platform or self._siblings(key.platform, other.platform))
            ]
        if key.family == GEMM.name and key.kernel is None:
            candidates = [other for other in candidates if self._is_like_a_step(other)]
        same_kernel = key.family == GEMM.name or all(
            other.backend == key.backend and key.kernel in (None, other.kernel)
            for other in candidates
        )
        own = [other for other in candidates if other.platform == key.platform]
        kin = [other for other in candidates if self._siblings(key.platform, other.platform)]
        regime, chosen = R0, candidates
        if same_kernel and (own or kin):
            regime, chosen = (R2, own) if own else (R1, kin)
        elif key.kernel in MARLINS:
            chosen = self._marlin_keys(key) or candidates
        if key.family == GEMM.name:
            engine = _ENGINES.get(key.backend)
            of_engine = [other for other in chosen if other.backend == engine]
            chosen = of_engine or chosen
            if engine and key.weights and not of_engine:  # a kernel of another source
                regime = R0
        by_backend: dict[tuple[str, str], list[Key]] = {}
        for other in chosen:
            by_backend.setdefault((other.platform, other.backend), []).append(other)
        nearest = (self._nearest_release(keys, release) for keys in by_backend.values())
        return regime, tuple(sorted(nearest, key=str))

    def _is_like_a_step(self, key: Key) -> bool:
        """Return whether a kernel's curves of products are those of an engine's step."""
        sm = self._chip(key.platform).sm
        return not any(
            (key.backend, key.dtype) == (unlike.package, unlike.dtype)
            and (unlike.sm is None or sm in unlike.sm)
            for unlike in UNLIKE_A_STEP
        )

    def _marlin_keys(self, key: Key) -> list[Key]:
        """Return the nearest groups of Marlin in other formats or of another engine.

        The form gives the cost of weights of other bytes. On one GPU the constants of int4 give .75
        to 1.03 of T(1) of experts in mxfp4 in the median of a kernel, and SGLang's .98 to 1.21 of
        vLLM's; those of other GPUs are further off.
        """
        marlins = [
            other
            for other in self.groups
            if other.kernel in MARLINS and (other.family, other.dtype) == (key.family, key.dtype)
        ]
        own = [other for other in marlins if other.platform == key.platform]
        near = own or [other for other in marlins if self._siblings(key.platform, other.platform)]
        same_weights = [other for other in near or marlins if other.weights == key.weights]
        return same_weights or near or marlins

    def _over_other_caches(self, key: Key) -> tuple[Key, ...]:
        """Return the groups of a kernel over caches in other formats, on its architecture.

        The form gives the cost of the cache's bytes; the constants are those of the other format.
        """
        kernel = key._replace(kv_dtype=None).elsewhere
        keys = [other for other in self.groups if other._replace(kv_dtype=None).elsewhere == kernel]
        own = [other for other in keys if other.platform == key.platform]
        chip = self._chip(key.platform)
        kin = [other for other in keys if alike_built(chip, self._chip(other.platform))]
        return tuple(sorted(own or kin, key=str))

    def _candidates(self, key: Key) -> list[Key]:
        """Return the groups of a kernel on any platform.

        If the kernel has no name or no group, they are those of its backend's kernels with the same
        form and formats; if there are none, those of any backend. For products that loses nothing:
        engines run these by the same libraries.
        """
        patterns = (pattern for pattern in _patterns(key) if pattern in self._keys_by_pattern)
        return next((self._keys_by_pattern[pattern] for pattern in patterns), [])

    def other_caches(self, rows: pl.DataFrame, family: str, resolver: Resolver) -> str:
        """Return the end of a refusal's text: the cache formats that would be answered, if any.

        `rows` are refused questions of one family.
        """
        if rows.is_empty():
            return ""
        distinct = rows.unique(_KERNEL_COLUMNS, maintain_order=True)
        formats = sorted({key.kv_dtype or key.dtype for key in self.groups if key.family == family})
        covered = [format_ for format_ in formats if self._covers_all(distinct, format_, resolver)]
        options = " or ".join(f"--kv-dtype {format_}" for format_ in covered)
        return f" for this GPU and cache: others are known with {options}" if covered else ""

    def _covers_all(self, rows: pl.DataFrame, cache_dtype: str, resolver: Resolver) -> bool:
        """Return whether groups cover all questions if their cache has this format."""
        kv_dtype = pl.when(pl.col("dtype") != cache_dtype).then(pl.lit(cache_dtype))
        parts = prepare(rows.with_columns(kv_dtype.alias("kv_dtype")), resolver)
        covered = (int(self.covers(part).sum()) for part in parts if isinstance(part, Prepared))
        return sum(covered) == rows.height

    def _nearest_release(self, keys: Sequence[Key], release: str | None) -> Key:
        """Return the key that was measured in the newest release up to the given one."""
        if len(keys) == 1:
            return keys[0]

        def order(key: Key) -> tuple[bool, Version, int, str]:
            group = self.groups[key]
            versions = [version_of(measured) for measured in group.releases]
            if release is not None:
                versions = [version for version in versions if version <= version_of(release)]
            newest = max(versions or [Version("0")])
            return bool(versions), newest, group.curves.height, str(key)

        return max(keys, key=order)

    def _times(self, part: Prepared, regime: str, keys: tuple[Key, ...]) -> GroupTimes:
        """Return T(N) of a part: the geometric mean of that by each group."""
        groups = tuple(self._constants(key) if regime == R0 else self.groups[key] for key in keys)
        logs = np.zeros(part.counts.shape)
        nearest: list[tuple[int, ...]] = [()] * part.rows.height
        regimes = [regime] * part.rows.height
        for number, group in enumerate(groups):
            ratio = self._carried_ratios(part, group.key) if regime == R1 else None
            latency_us, nearness, measured = times_by_group(part, group, ratio)
            logs += np.log(latency_us) / len(groups)
            if number == 0 and regime != R0:
                nearest = nearest_curves(nearness)
            if isinstance(group, Group) and regime == R2:
                measured &= has_routing(part, group)
                regimes = [
                    R3 if is_measured or previous == R3 else R2
                    for is_measured, previous in zip(measured, regimes, strict=True)
                ]
        at_one_position = part.family.name in AT_ONE_POSITION
        if at_one_position:
            regimes = [R0] * part.rows.height
        return GroupTimes(
            latency_us=np.exp(logs),
            regime=regimes,
            groups=groups,
            curves=nearest,
            at_one_position=at_one_position and regime != R0,
        )


class _Query(NamedTuple):
    """The properties of a question by which groups are chosen."""

    key: Key
    release: str | None
    gated: bool


def _queries(part: Prepared) -> Iterator[_Query]:
    """Return the query of each question of a part."""
    releases = part.rows["backend_version"].to_list()
    return map(_Query, keys_of(part.rows), releases, gates.gates_of(part.rows))


def select_rows(part: Prepared, rows: Flags) -> Prepared:
    """Return the flagged questions of a part."""
    if rows.all():
        return part
    return structs.replace(
        part,
        rows=part.rows.filter(pl.Series(rows)),
        features=selected_features(part.features, rows),
        counts=part.counts[rows],
    )


def _patterns(key: Key) -> list[tuple[int, tuple[str | None, ...]]]:
    """Return patterns of keys on any platform: the kernel, its backend's kernels, its form's."""
    any_kernel = key._replace(kernel=None)
    keys = key, any_kernel, any_kernel._replace(backend="")
    return [(breadth, pattern.elsewhere) for breadth, pattern in enumerate(keys)]
