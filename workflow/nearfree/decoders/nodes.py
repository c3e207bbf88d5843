"""Over how many nodes GPUs lie that send each other something, where a node does not hold all."""

from typing import NamedTuple

from nearfree.core.parallel import Parallel
from nearfree.decoders.engines import Engine


class Nodes(NamedTuple):
    """Where the ranks of a deployment lie.

    `of_groups` are the nodes of all groups of a stage, of which each has `fewest` ranks or more,
    None where there is one; of the hops from one stage to the next, `crossings` leave a node.
    """

    of_groups: int
    crossings: int
    fewest: int | None = None


ON_ONE = Nodes(1, 0)
"""All lie on one node."""


def nodes_of(parallel: Parallel, engine: Engine, node_gpus: int | None) -> Nodes:
    """Return over how many nodes a deployment's ranks lie.

    A node holds whole groups of tp ranks, as many as fit, if any does; groups that are neighbours
    share one.

    Parameters
    ----------
    engine
        What serves the model: it says which groups are neighbours.
    node_gpus
        The GPUs of a node; None where all lie on one.
    """
    if node_gpus is None:
        return ON_ONE
    room = max(1, node_gpus // parallel.tp)
    inner, outer = parallel.dp, parallel.pp
    if engine.stages_inside:
        inner, outer = outer, inner
    inside = -(-inner // room)
    around = -(-outer // max(1, room // inner))
    groups, stages = (around, inside) if engine.stages_inside else (inside, around)
    of_group = -(-parallel.tp // node_gpus)
    together = max(1, room // inner) if engine.stages_inside else room
    last = parallel.dp - (groups - 1) * together
    fewest = last * parallel.tp - (of_group - 1) * node_gpus
    nodes = groups * of_group
    return Nodes(nodes, stages - 1, fewest if nodes > 1 else None)
