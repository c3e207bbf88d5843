"""How engines read a schedule, rewritten from their sources for the fast tests.

The slow tests compare `vllm_lookup` with vLLM's own code.
"""

import ast
import json
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

MOST_BATCH = 300
SCHEDULES = st.builds(
    lambda first, others: {1: first, **others},
    st.integers(0, 12),
    st.dictionaries(st.integers(2, MOST_BATCH), st.integers(0, 12), max_size=12),
).filter(lambda k_by_batch: any(k_by_batch.values()))
"""K by batch size, with batch 1 and some K above 0, in no order."""


def vllm_lookup(schedule: Sequence[Sequence[int]], batches: int, most: int) -> list[int]:
    """Return the K that vLLM takes at each batch size from 1 on."""
    found, carried = [], 0
    for batch in range(1, batches + 1):
        for first, last, k in schedule:
            if first <= batch <= last:
                carried = k
        found.append(min(carried, most))
    return found


def sglang_steps(file: str, batch: int) -> int:
    """Return SGLang's steps at a batch size: those of the largest key not above it."""
    entries = {int(key): entry for key, entry in json.loads(file).items()}
    [steps] = entries[max(key for key in entries if key <= batch)]["candidate_steps"]
    return int(steps)


def between(k_by_batch: Mapping[int, int], batch: int) -> int:
    """Return a schedule's K at a batch size: the smaller of the two known neighbours'."""
    below = max(known for known in k_by_batch if known <= batch)
    above = min((known for known in k_by_batch if known >= batch), default=below)
    return min(k_by_batch[below], k_by_batch[above])


def place(content: str, name: str) -> ast.stmt:
    """Return the one function, class or annotated field of a dotted name in a file."""
    body: list[ast.stmt] = ast.parse(content).body
    for part in name.split("."):
        [node] = [line for line in body if part in {_name(line), _target(line)}]
        body = getattr(node, "body", [])
    return node


def _name(node: ast.stmt) -> str | None:
    return getattr(node, "name", None)


def _target(node: ast.stmt) -> str | None:
    return getattr(node.target, "id", None) if isinstance(node, ast.AnnAssign) else None


def lines(content: str, first: int, last: int) -> str:
    """Return lines of a file, each with its line feed."""
    return "".join(f"{line}\n" for line in content.split("\n")[first - 1 : last])
