"""vLLM's schedule, read by its validator and its lookup."""

import ast
import json
import time
from typing import Any

import pytest
from hypothesis import given
from nearfree.derive.schedule.draft_lengths import draft_lengths
from nearfree.derive.schedule.engines import KEY, VLLM_PARSERS, vllm_option
from nearfree.errors import ConfigError
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.program import Program
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.statements import REFUSED

from derive.schedule.conftest import Sources
from derive.schedule.engine import MOST_BATCH, SCHEDULES, between, vllm_lookup

LOOKUP = "build_dynamic_sd_schedule_lookup"
EXAMPLES: tuple[dict[int, int], ...] = (
    {1: 7},
    {1: 7, 2: 7, 4: 3, 8: 3, 16: 1, 32: 0},
    {1: 0, 2: 5},
    {1: 2, 40: 9, 41: 1, 64: 4},
)


def read(k_by_batch: dict[int, int]) -> tuple[list[list[int]], int]:
    """Return the schedule and the longest draft of the option written for vLLM."""
    config = json.loads(vllm_option(k_by_batch).text)
    assert set(config) == {KEY, "num_speculative_tokens"}
    return config[KEY], config["num_speculative_tokens"]


@given(SCHEDULES)
def test_the_engine_looks_up_each_length(k_by_batch: dict[int, int]) -> None:
    """VLLM reads the text as K at each known batch size, and the last K beyond."""
    schedule, most = read(k_by_batch)
    last = max(k_by_batch)
    meant = [between(k_by_batch, min(batch, last)) for batch in range(1, MOST_BATCH + 9)]
    assert vllm_lookup(schedule, MOST_BATCH + 8, most) == meant


def test_text() -> None:
    """The text is one JSON object with the longest draft and the ranges."""
    text = vllm_option({1: 7, 2: 7, 4: 3}).text
    assert json.loads(text) == {
        "num_speculative_tokens": 7,
        "num_speculative_tokens_per_batch_size": [[1, 2, 7], [3, 4, 3]],
    }


def test_a_large_schedule_takes_no_time() -> None:
    """A schedule of 256 batch sizes takes no more than a second."""
    boundaries = {batch: 1 + 2048 / batch for batch in range(1, 257)}
    begun = time.process_time()
    vllm_option(draft_lengths(boundaries, most=64))
    assert time.process_time() - begun < 1


class _Cut(ast.NodeTransformer):
    """Takes out of vLLM's code what the interpreter does not know, where it changes nothing.

    A schedule that we write is sorted, and a list of zeros is given ready made.
    """

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if "parsed_schedule.sort(" in ast.unparse(node):
            return None
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if ast.unparse(node) == "[0] * (vllm_max_batch_size + 1)":
            return ast.Name("zeros", ast.Load())
        return self.generic_visit(node)


def program(source: Sources) -> Program:
    """Return vLLM's lookup with its validator, for the interpreter."""
    parser = next(vllm_parser for vllm_parser in VLLM_PARSERS if vllm_parser.name == LOOKUP)
    tree = _Cut().visit(ast.parse(source(parser.package, parser.version, parser.file)))
    # Entries out of JSON are lists, which is what these ask for.
    leaves = {r"isinstance\(.*\)": "True"}
    return Modules({parser.file: ast.unparse(tree)}).program([LOOKUP], leaves)[0]


def run(code: Program, schedule: Any, batches: int, most: int) -> Any:
    """Return what vLLM's code makes of a schedule: K by batch size, or a refusal."""
    inputs = {
        "num_speculative_tokens_per_batch_size": schedule,
        "vllm_max_batch_size": batches,
        "vllm_num_speculative_tokens": most,
        "zeros": [0] * (batches + 1),
    }
    result = Interpreter(code).run(LOOKUP, inputs)
    return result if result == REFUSED else result[1:]


@pytest.mark.slow
@pytest.mark.parametrize("k_by_batch", EXAMPLES)
@pytest.mark.parametrize("batches", [1, 5, 64, 100])
def test_vllm_reads_what_is_written(
    source: Sources, k_by_batch: dict[int, int], batches: int
) -> None:
    """VLLM's own code, interpreted, accepts the schedule and finds each K."""
    schedule, most = read(k_by_batch)
    meant = [between(k_by_batch, min(b, max(k_by_batch))) for b in range(1, batches + 1)]
    assert run(program(source), schedule, batches, most) == meant
    assert vllm_lookup(schedule, batches, most) == meant


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "most", "ours"),
    [
        (None, 3, {}),
        ([], 3, {}),
        ([[2, 4, 3]], 3, {2: 3, 4: 3}),
        ([[0, 4, 3]], 3, {0: 3, 4: 3}),
        ([[1, 4, -1]], 3, {1: -1, 4: -1}),
        ([[1, 4, 0]], 0, {1: 0, 4: 0}),
        ([[1, 4]], 3, None),
        ([[4, 1, 3]], 3, None),
        ([[1, 4, 3], [4, 8, 2]], 3, None),
        ([[1, 4, 3], [3, 3, 2]], 3, None),
    ],
)
def test_options_that_vllm_refuses_are_never_written(
    source: Sources, schedule: Any, most: int, ours: dict[int, int] | None
) -> None:
    """Options that vLLM's code refuses are never written."""
    assert run(program(source), schedule, 8, most) == REFUSED
    if ours is not None:
        with pytest.raises(ConfigError):
            vllm_option(ours)
