"""Degrees of parallelism of a query, and the reasons to refuse them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from nearfree.config.files import DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.decoders.ranks.shards import without_experts
from nearfree.errors import ConfigError, Refusal
from nearfree.hardware.platforms import Platform

Changes = Mapping[str, Any]
"""Fields of a query in place of its own."""
Option = tuple[str, Changes]
"""Words of the command line, and what they change."""


class Spread(Struct, frozen=True, kw_only=True):
    """The degrees of parallelism of a query, with the reasons to refuse them.

    `ep` is the degree of the query, and `uneven` the refusal if it does not divide the ranks;
    `parallel` then has ep 1, so that everything else is checked, too.
    """

    parallel: Parallel
    refusals: tuple[Refusal, ...] = ()
    ep: int = 1
    uneven: Refusal | None = None

    def refused(self, *, of_experts: bool) -> tuple[Refusal, ...]:
        """Return the refusals for a model with experts, or for one without, which has no ep."""
        if self.uneven is None:
            return self.refusals
        return (self.uneven if of_experts else without_experts(self.ep), *self.refusals)


def spread_of(spec: DeploymentSpec) -> Spread:
    """Return the degrees of parallelism of a query.

    A number of GPUs without tp, dp or pp is taken as tp, as engines do.
    """
    degrees = spec.by_name
    if spec.gpus is not None and spec.tp == spec.dp == spec.pp == 1:
        degrees["tp"] = spec.gpus
    uneven = None
    try:
        parallel = Parallel(**degrees)
    except ConfigError as error:
        uneven = Refusal("", "", error.what, error.remedy)
        parallel = Parallel(**degrees | {"ep": 1})
    refusals = list[Refusal]()
    if spec.gpus not in (None, parallel.gpus):
        gpus, sizes = parallel.gpus, f"tp {parallel.tp} x dp {parallel.dp} x pp {parallel.pp}"
        reason = f"{spec.gpus} is not the {gpus} of {sizes}"
        refusals.append(Refusal("", "gpus", reason, f"Give {gpus}, or leave --gpus out"))
    return Spread(parallel=parallel, refusals=tuple(refusals), ep=spec.ep, uneven=uneven)


def node_refusals(parallel: Parallel, platform: str, sheet: Platform) -> Iterator[Refusal]:
    """Yield a refusal where GPUs of several nodes are needed and the network is not known."""
    gpus, node = parallel.gpus, sheet.joined_gpus
    if gpus > 1 and node is None:
        reason = f"{gpus} of {platform} are asked for, and how many a node has is not known"
        yield Refusal("", "gpus", reason, "Ask about one, or add node_gpus to platforms.yaml")
    elif node is not None and gpus > node and sheet.network_gb_s is None:
        reason = f"{gpus} of {platform} are more than the {node} of a node, and no network between "
        remedy = f"Give tp x dp x pp of {node} at most, or add network_gb_s to platforms.yaml"
        yield Refusal("", "gpus", reason + "nodes is known", remedy)


def node_options(parallel: Parallel, node: int | None) -> list[Option]:
    """Return options that keep tp on a node, where it is spread over several.

    The first have as many GPUs, the last one has fewer.
    """
    if node is None or parallel.tp <= node:
        return []
    spreads = [{"gpus": parallel.gpus // parallel.tp * node}]
    if parallel.tp % node == 0:
        pp, dp = (degree * parallel.tp // node for degree in (parallel.pp, parallel.dp))
        spreads = [{"pp": pp}, {"dp": dp}, *spreads]
    return [
        (
            " ".join(f"--{name} {degree}" for name, degree in {"tp": node, **rest}.items()),
            {"tp": node, "gpus": None, **rest},
        )
        for rest in spreads
    ]


def tp_options(parallel: Parallel, gpus: int | None, node: int | None) -> list[Option]:
    """Return options that name another tp, the smaller ones first, to twice as many GPUs.

    None is larger than a node, since an all-reduce between nodes is refused. An ep of all ranks
    stays one of all ranks. `gpus` is the number that the query names, if any.
    """
    options, own, most = list[Option](), parallel.tp, node or 1
    for tp in (*range(min(own - 1, most), 0, -1), *range(own + 1, min(2 * own, most) + 1)):
        ranks = tp * parallel.dp
        changes = {"tp": tp}
        if parallel.ep == parallel.ranks > 1:
            changes["ep"] = ranks
        if gpus is not None:
            changes["gpus"] = ranks * parallel.pp
        options.append(
            (" ".join(f"--{name} {degree}" for name, degree in changes.items()), changes)
        )
    return options


def pp_options(parallel: Parallel) -> list[Option]:
    """Return options that share the same GPUs over more pipeline stages, the largest tp first.

    An ep of all ranks stays one of all ranks.
    """
    options = list[Option]()
    for tp in range(parallel.tp // 2, 0, -1):
        if parallel.tp % tp == 0:
            changes = {"tp": tp, "pp": parallel.pp * parallel.tp // tp}
            if parallel.ep == parallel.ranks > 1:
                changes["ep"] = tp * parallel.dp
            words = " ".join(f"--{name} {degree}" for name, degree in changes.items())
            options.append((words, changes))
    return options


def platform_options(
    sheets: Mapping[str, Platform], platform: str, parallel: Parallel
) -> list[Option]:
    """Return options that name a platform with enough GPUs joined, the nearest in bandwidth first.

    Its nodes are as large at least. Those with less memory than the asked one come last. Each is
    named with the degrees as they are, then with tp on a node and as many GPUs.
    """
    own = sheets[platform]

    def distance(name: str) -> tuple[bool, float]:
        sheet = sheets[name]
        ratio = (sheet.bandwidth_gb_s or 1.0) / (own.bandwidth_gb_s or 1.0)
        return (sheet.memory_gb or 0.0) < (own.memory_gb or 0.0), abs(math.log(ratio))

    joined = [
        name
        for name, sheet in sheets.items()
        if sheet.kind == "cuda"
        and (sheet.joined_gpus or 1) >= (own.joined_gpus or 1)
        and not any(node_refusals(parallel, name, sheet))
    ]
    return [
        (f"--platform {name} {text}".strip(), {"platforms": (name,), **changes})
        for name in sorted(joined, key=distance)
        for text, changes in [("", {}), *node_options(parallel, sheets[name].joined_gpus)]
        if not changes.get("gpus")
    ]
