"""The number of nodes over which communicating GPUs are spread."""

from typing import NamedTuple

from nearfree.core.parallel import Parallel
from nearfree.decoders.ranks.engines import Engine


class Nodes(NamedTuple):
    """How the ranks of a deployment are spread over nodes.

    All dp groups of a stage are on `per_stage` nodes, each with at least `fewest` of their ranks
    (None if it is one node). Of the hops from one stage to the next, `crossings` leave a node.
    """

    per_stage: int
    crossings: int
    fewest: int | None = None


ON_ONE = Nodes(1, 0)
"""All ranks are on one node."""


def nodes_of(parallel: Parallel, engine: Engine, node_gpus: int | None) -> Nodes:
    """Return how a deployment's ranks are spread over nodes.

    A node holds as many whole groups of tp ranks as fit; neighbouring groups share a node. A group
    that does not fit into one node takes several.

    Parameters
    ----------
    node_gpus
        GPUs per node; None if all are on one node.
    """
    if node_gpus is None:
        return ON_ONE
    groups_per_node = max(1, node_gpus // parallel.tp)
    inner, outer = parallel.dp, parallel.pp
    if engine.stages_inside:
        inner, outer = outer, inner
    inner_nodes = -(-inner // groups_per_node)
    outer_nodes = -(-outer // max(1, groups_per_node // inner))
    dp_nodes, pp_nodes, stage_groups = inner_nodes, outer_nodes, groups_per_node
    if engine.stages_inside:
        dp_nodes, pp_nodes = outer_nodes, inner_nodes
        stage_groups = max(1, groups_per_node // inner)
    nodes_per_group = -(-parallel.tp // node_gpus)
    groups_on_last = parallel.dp - (dp_nodes - 1) * stage_groups
    fewest = groups_on_last * parallel.tp - (nodes_per_group - 1) * node_gpus
    nodes = dp_nodes * nodes_per_group
    return Nodes(nodes, pp_nodes - 1, fewest if nodes > 1 else None)
