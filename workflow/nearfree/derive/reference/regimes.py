"""What an answer stands on: its regime, and T(N) with what is known in it.

R3: the kernel's own curve of the shape, of this release or another. R2: curves of other shapes of
the kernel on the GPU. R1: those of a sibling GPU. R0: constants alone, of all GPUs on which the
kernel was measured, or the shared ones of its family.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, structs
from packaging.version import Version

from nearfree.backends.public_kernels import MARLINS, UNLIKE_A_STEP
from nearfree.backends.records import BACKENDS
from nearfree.derive.reference import gates
from nearfree.derive.reference.groups import (
    Constants,
    Group,
    Key,
    form_us,
    keys_of,
    version_of,
)
from nearfree.derive.reference.kriging import AT_ONE_PLACE, coordinates
from nearfree.derive.reference.siblings import Chip, alike_built, siblings
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.attention_rows import as_decoding
from nearfree.derive.work_model.dense_rows import ENGINES, without_rules
from nearfree.derive.work_model.families import OF_KERNELS
from nearfree.derive.work_model.family import Array, Features, Flags
from nearfree.derive.work_model.fit import Measured, taken
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.mla import MLA_CACHED
from nearfree.derive.work_model.prepare import Prepared

R0, R1, R2, R3 = REGIMES = ("R0", "R1", "R2", "R3")
"""From what knows nothing of the GPU and kernel to their own curve."""
MEANINGS = {
    R0: "nothing is known of this kernel and format on this GPU: constants of others",
    R1: "a sibling GPU is known: its constants and residuals",
    R2: "this GPU and kernel are known, the shape is new: form and residual",
    R3: "this kernel and shape were measured: its own curve",
}
LEANS_ON = r" \(nearest [^()]*\)$"
"""What an answer's constants end with: the curves that it leans on most."""
NEAREST = 3
"""Curves that an answer names."""
_ENGINES = {each.name: each.engine for each in BACKENDS if each.engine is not None}
"""The engine whose library a backend of products is."""
_RULED = {_ENGINES[name] for name in ENGINES}
"""The engines whose rules say rows of products."""


AT_ONE_POSITION = (ATTENTION_CACHED.name, MLA_CACHED.name)
"""Families whose kernels were measured at one position alone: of several nothing is known but the
form with their constants."""


class Known(Struct, frozen=True, kw_only=True):
    """T(N) of questions of one part: `latency_us` [rows, grid] and, of each row, what it rests on.

    `groups` are those asked, in R0 their constants alone, and `curves` the places of the nearest
    ones in the first, none in R0. `at_one_position` says that T(1) is by curves of this GPU or a
    sibling, and more positions by the form alone: R0.
    """

    latency_us: Array
    regime: list[str]
    groups: tuple[Group | Constants, ...]
    curves: list[tuple[int, ...]]
    at_one_position: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels whose curves or constants speak; of one without a name its backend."""
        return tuple(dict.fromkeys(each.key.kernel or each.key.backend for each in self.groups))

    def of(self, rows: Flags) -> "Known":
        """Return what is known of some of the rows."""
        (places,) = np.nonzero(rows)
        return structs.replace(
            self,
            latency_us=self.latency_us[places],
            regime=[self.regime[place] for place in places],
            curves=[self.curves[place] for place in places],
        )

    def texts(self) -> list[str]:
        """Return, of each row, what its constants were calibrated on, and the nearest curves."""
        first = self.groups[0]
        where = ", ".join(dict.fromkeys(group.key.platform for group in self.groups))
        caches = dict.fromkeys(f" over a {each.key.kv_dtype} cache" for each in self.groups
                               if each.key.family in OF_KERNELS and each.key.kv_dtype)  # fmt: skip
        about = f"{first.key.family} by {', '.join(self.kernels)} on {where}{' and'.join(caches)}"
        named = first.curve_texts if isinstance(first, Group) else []
        return [
            f"{regime}: {about}, {sum(group.count for group in self.groups)} curves"
            + (f" (nearest {', '.join(named[place] for place in places)})" if places else "")
            for regime, places in zip(self.regime, self.curves, strict=True)
        ]


class Reference:
    """Groups of kernels, asked by questions.

    Parameters
    ----------
    groups
        By their keys.
    chips
        The chip of each platform: those of equal compute capability are of one architecture, and
        from 10.0 on those of one major version; siblings are, where their balances are alike.
    constants
        Returns the constants of a group without its curves, where that is less work.
    """

    def __init__(
        self,
        groups: Mapping[Key, Group],
        chips: Mapping[str, Chip],
        constants: Callable[[Key], Constants] | None = None,
    ) -> None:
        self.groups, self._chips = groups, chips
        self._constants = constants or (lambda key: groups[key].constants)
        self._elsewhere: dict[tuple[int, tuple[str | None, ...]], list[Key]] = {}
        for key in groups:
            for wider in _wider(key):
                self._elsewhere.setdefault(wider, []).append(key)

    def without(self, platform: str, *, siblings: bool = False) -> "Reference":
        """Return the groups of all other platforms; with `siblings`, without those, too."""
        kept = {
            key: each
            for key, each in self.groups.items()
            if key.platform != platform
            and not (siblings and self._siblings(platform, key.platform))
        }
        return Reference(kept, self._chips)

    def _siblings(self, one: str, other: str) -> bool:
        """Return whether what is known of one platform's kernels speaks of the other's."""
        return siblings(self._chip(one), self._chip(other))

    def _chip(self, platform: str) -> Chip:
        return self._chips.get(platform, Chip(None, None))

    def knows(self, part: Prepared) -> Flags:
        """Return of which questions there are groups, [rows]."""
        return np.array([bool(self._choose(each)[1]) for each in _asked(part)], dtype=bool)

    def timed(self, part: Prepared) -> Iterator[tuple[Flags, Known]]:
        """Yield T(N) of the rows of which groups are known, with which rows they are."""
        asked: dict[tuple[str, tuple[Key, ...]], list[int]] = {}
        chosen: dict[_Asked, tuple[str, tuple[Key, ...]]] = {}
        for place, each in enumerate(_asked(part)):
            if each not in chosen:
                chosen[each] = self._choose(each)
            asked.setdefault(chosen[each], []).append(place)
        for (regime, groups), places in asked.items():
            if not groups:
                continue
            rows = np.zeros(part.rows.height, dtype=bool)
            rows[places] = True
            yield rows, self._timed(rows_of(part, rows), regime, groups)

    def _choose(self, asked: "_Asked") -> tuple[str, tuple[Key, ...]]:
        """Return the regime of a kernel, and the groups that speak of it.

        Of products that no kernel is named of, curves that are unlike an engine's step do not; an
        engine's own library does before others'. Of decoding, those of the kernel itself do, on
        this GPU or a sibling. Of experts, kernels with a gate or without one do, as is asked.
        """
        key, release = gates.named(asked.key, gated=asked.gated), asked.release
        named = gates.of_gate(self._alike(key), gated=asked.gated)
        if not named and key.family in OF_KERNELS:
            return R0, self._over_another_cache(key)
        if key.family == ATTENTION_CACHED.name:
            named = [each for each in named if each.kernel == key.kernel and self._near(key, each)]
        if key.family == GEMM.name and key.kernel is None:
            named = [each for each in named if self._as_in_a_step(each)]
        same = key.family == GEMM.name or all(
            each.backend == key.backend and key.kernel in (None, each.kernel) for each in named
        )
        own = [each for each in named if each.platform == key.platform]
        kin = [each for each in named if self._siblings(key.platform, each.platform)]
        regime, chosen = R0, named
        if same and (own or kin):
            regime, chosen = (R2, own) if own else (R1, kin)
        elif key.kernel in MARLINS:
            chosen = self._of_marlin(key) or named
        if key.family == GEMM.name:
            chosen = [
                each for each in chosen if each.backend == _ENGINES.get(key.backend)
            ] or chosen
        of_each: dict[tuple[str, str], list[Key]] = {}
        for each in chosen:
            of_each.setdefault((each.platform, each.backend), []).append(each)
        nearest = (self._nearest(each, release) for each in of_each.values())
        return regime, tuple(sorted(nearest, key=str))

    def _near(self, key: Key, other: Key) -> bool:
        """Return whether a group is of the same platform or a sibling."""
        return other.platform == key.platform or self._siblings(key.platform, other.platform)

    def _as_in_a_step(self, key: Key) -> bool:
        """Return whether a kernel's curves of products say what a product takes in a step."""
        sm = self._chip(key.platform).sm
        return not any(
            (key.backend, key.dtype) == (each.package, each.dtype)
            and (each.sm is None or sm in each.sm)
            for each in UNLIKE_A_STEP
        )

    def _of_marlin(self, key: Key) -> list[Key]:
        """Return the groups of Marlin in other formats or another engine, as near as there are any.

        The form says what weights of other bytes cost. On one GPU the constants of int4 say .75 to
        1.03 of T(1) of experts in mxfp4 in the median of a kernel, and SGLang's .98 to 1.21 of
        vLLM's; those of other GPUs are further off.
        """
        found = [
            each for each in self.groups
            if each.kernel in MARLINS and (each.family, each.dtype) == (key.family, key.dtype)
        ]  # fmt: skip
        own = [each for each in found if each.platform == key.platform]
        near = own or [each for each in found if self._siblings(key.platform, each.platform)]
        return [each for each in near or found if each.weights == key.weights] or near or found

    def _over_another_cache(self, key: Key) -> tuple[Key, ...]:
        """Return the groups of a kernel over caches in other formats, on its architecture.

        The form says what another cache's bytes cost; the constants are those of other bytes.
        """
        wanted = key._replace(kv_dtype=None).elsewhere
        found = [each for each in self.groups if each._replace(kv_dtype=None).elsewhere == wanted]
        own = [each for each in found if each.platform == key.platform]
        chip = self._chip(key.platform)
        kin = [each for each in found if alike_built(chip, self._chip(each.platform))]
        return tuple(sorted(own or kin, key=str))

    def _alike(self, key: Key) -> list[Key]:
        """Return the groups of a kernel on any platform.

        Without a name, or where none is of the kernel that is named, they are those of its
        backend's kernels of the form and formats; where there are none either, of any backend's.
        Of products that is no loss: engines leave those to the same libraries.
        """
        return next((self._elsewhere[each] for each in _wider(key) if each in self._elsewhere), [])

    def _nearest(self, keys: Sequence[Key], release: str | None) -> Key:
        """Return the kernel that was measured in the newest release up to the one asked of."""
        if len(keys) == 1:
            return keys[0]

        def order(key: Key) -> tuple[bool, Version, int, str]:
            group = self.groups[key]
            versions = [version_of(each) for each in group.releases]
            before = [each for each in versions if release is None or each <= version_of(release)]
            return bool(before), max(before or [Version("0")]), group.curves.height, str(key)

        return max(keys, key=order)

    def _timed(self, part: Prepared, regime: str, keys: tuple[Key, ...]) -> Known:
        groups = tuple(self._constants(key) if regime == R0 else self.groups[key] for key in keys)
        logs = np.zeros(part.counts.shape)
        nearest: list[tuple[int, ...]] = [()] * part.rows.height
        regimes = [regime] * part.rows.height
        for number, group in enumerate(groups):
            found, near, measured = _of_group(part, group)
            logs += np.log(found) / len(groups)
            if number == 0 and regime != R0:
                nearest = _nearest_of(near)
            if isinstance(group, Group) and regime == R2:
                measured &= _spread_alike(part, group)
                regimes = [
                    R3 if each or old == R3 else R2
                    for each, old in zip(measured, regimes, strict=True)
                ]
        at_one_position = part.family.name in AT_ONE_POSITION
        if at_one_position:
            regimes = [R0] * part.rows.height
        return Known(
            latency_us=np.exp(logs),
            regime=regimes,
            groups=groups,
            curves=nearest,
            at_one_position=at_one_position and regime != R0,
        )


class _Asked(NamedTuple):
    """What a question asks of: a kernel, a release, and whether experts have a gate."""

    key: Key
    release: str | None
    gated: bool


def _asked(part: Prepared) -> Iterator[_Asked]:
    """Return what each question of a part asks of."""
    releases = part.rows["backend_version"].to_list()
    return map(_Asked, keys_of(part.rows), releases, gates.gates_of(part.rows))


def _of_group(part: Prepared, group: Group | Constants) -> tuple[Array, Array, Flags]:
    """Return what a group says of questions, or its constants alone.

    Returns
    -------
    T(N) with the group's constants and residuals, [rows, grid]; how near its curves are, [rows,
    curves], of several products to the nearest; and whether every product was measured, [rows].
    """
    family, rows, n = part.family.name, part.rows, part.features["n"]
    near, measured = np.zeros((rows.height, 0)), np.ones(rows.height, dtype=bool)
    total = np.zeros(n.shape)
    for shape, features, times in _calls(part):
        counted = gates.counted(shape, features, group)
        if isinstance(group, Group) and group.key.backend in _RULED:
            counted = without_rules(counted)
        time = form_us(group.key.family, group.values, counted)
        if isinstance(group, Group):
            residual, mine = group.residuals(coordinates(family, shape, n))
            time = time * np.exp(residual)
            near = np.maximum(near, mine) if near.size else mine
            measured &= np.isin(mine, AT_ONE_PLACE).any(axis=1)
        total = total + times * time
    return total, near, measured


def _spread_alike(part: Prepared, group: Group) -> Flags:
    """Return which questions have loads that the group has curves of, on one rank, [rows]."""
    asked = part.rows.select("routing", "ep").iter_rows()
    return np.array([(each or "") in group.routings and ep in (None, 1) for each, ep in asked])


def _calls(part: Prepared) -> Iterator[tuple[pl.DataFrame, Features, Array | float]]:
    """Yield what a module calls: rows and features as if asked alone, and how often.

    Of attention that decodes it is the call of one position, whatever else is asked.
    """
    if part.family is ATTENTION_CACHED:
        yield part.rows, as_decoding(part.features), 1.0
        return
    if part.rows["module"][0] != "dense_ffn":
        yield part.rows, part.features, 1.0
        return
    for number, (wide, narrow, times) in enumerate(part.features["matrices"]):
        sides = (pl.Series("d_model", wide[:, 0]), pl.Series("d_ff", narrow[:, 0]))
        yield part.rows.with_columns(sides), _product(part.features, number), times


def _product(features: Features, number: int) -> Features:
    """Return the features of one of the products of a module, done once."""
    wide, narrow, _ = features["matrices"][number]
    ruled = {
        f"{name}_0": features[f"{name}_{number}"]
        for name in ("padded", "passes")
        if f"{name}_{number}" in features
    }
    return {**without_rules(features), **ruled, "matrices": [(wide, narrow, 1.0)]}


def rows_of(part: Prepared, rows: Flags) -> Prepared:
    """Return some of the questions of a part."""
    if rows.all():
        return part
    every = Measured(features=part.features, latency_us=part.features["n"], counts=part.counts)
    features = taken(every, rows).features
    return Prepared(
        family=part.family,
        rows=part.rows.filter(pl.Series(rows)),
        features=features,
        counts=part.counts[rows],
        carried=part.carried,
    )


def _wider(key: Key) -> list[tuple[int, tuple[str | None, ...]]]:
    """Return a kernel on any platform, any kernel of its backend, and any of its form."""
    of_backend = key._replace(kernel=None)
    every = key, of_backend, of_backend._replace(backend="")
    return [(breadth, each.elsewhere) for breadth, each in enumerate(every)]


def _nearest_of(near: Array) -> list[tuple[int, ...]]:
    """Return the places of the nearest curves of each row, the first of equally near ones first."""
    many = min(NEAREST, near.shape[1])
    farthest = -np.partition(-near, many - 1, axis=1)[:, many - 1 : many]
    found = []
    for row, among in zip(near, near >= farthest, strict=True):
        (places,) = np.nonzero(among)
        found.append(tuple(places[np.argsort(-row[places], kind="stable")][:many].tolist()))
    return found
