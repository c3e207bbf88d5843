"""SGLang's file of candidate steps, read as its loader does."""

import ast
import json

import pytest
from hypothesis import given
from nearfree.derive.schedule.engines import SGLANG_PARSERS, sglang_option
from nearfree.errors import ConfigError

from derive.schedule.conftest import Sources
from derive.schedule.engine import MOST_BATCH, SCHEDULES, between, place, sglang_steps

RULES = [
    ("_load_adaptive_config", "key.isdigit()"),
    ("_load_adaptive_config", "entry.get('candidate_steps')"),
    ("_load_adaptive_config", "not isinstance(steps, list)"),
    ("_load_adaptive_config", "not steps"),
    ("_load_adaptive_config", "isinstance(s, int) and s >= 0"),
    ("_load_adaptive_config", "not bs_entries"),
    ("AdaptiveStepSlot", "self.candidate_steps[len(self.candidate_steps) // 2]"),
    ("AdaptiveStepSlot", "current_idx < len(self.candidate_steps) - 1"),
    ("AdaptiveSpeculativeParams", "bisect.bisect_right(self._bs_list, target) - 1"),
    ("AdaptiveSpeculativeParams", "self._bs_list[max(0, idx)]"),
    ("AdaptiveSpeculativeParams", "bisect.bisect_left(self._cuda_graph_bs, batch_size)"),
    ("adaptive_unsupported_reason", "cfg.speculative_algorithm not in ('EAGLE', 'EAGLE3')"),
    ("adaptive_unsupported_reason", "cfg.speculative_eagle_topk != 1"),
    ("_init_adaptive_speculative_params", "cfg.speculative_num_steps not in candidate_steps"),
    ("_init_adaptive_speculative_params", "candidate_steps[len(candidate_steps) // 2]"),
    ("_init_adaptive_speculative_params", "cfg.speculative_num_steps + 1"),
]
"""Expressions of SGLang's source that the file's form rests on, by where they stand."""


@given(SCHEDULES)
def test_the_engine_takes_each_length(k_by_batch: dict[int, int]) -> None:
    """SGLang reads the file as K at each known batch size, and the last K beyond."""
    text = sglang_option(k_by_batch).text
    last = max(k_by_batch)
    for batch in range(1, MOST_BATCH + 9):
        assert sglang_steps(text, batch) == between(k_by_batch, min(batch, last))


@given(SCHEDULES)
def test_the_file_is_as_the_loader_asks(k_by_batch: dict[int, int]) -> None:
    """Keys are digits, and each entry has candidates from 0 on, of which the middle one drafts."""
    entries = json.loads(sglang_option(k_by_batch).text)
    assert entries
    for key, entry in entries.items():
        assert key.isascii()
        assert key.isdigit()
        steps = entry["candidate_steps"]
        assert steps
        assert all(type(step) is int and step >= 0 for step in steps)
    union = sorted({step for entry in entries.values() for step in entry["candidate_steps"]})
    assert union[len(union) // 2] > 0


def test_text() -> None:
    """The file has one candidate a range, by the batch size where the range begins."""
    option = sglang_option({1: 7, 2: 7, 4: 3, 8: 0})
    assert json.loads(option.text) == {
        "1": {"candidate_steps": [7]},
        "3": {"candidate_steps": [3]},
        "5": {"candidate_steps": [0]},
    }
    assert any("one of 0, 3, 7" in note for note in option.notes)


@pytest.mark.parametrize("last", [48, 49, 201])
def test_more_requests_than_sglang_runs_are_asked_for(last: int) -> None:
    """For more than 48 requests the option that allows them is named."""
    notes = [note for note in sglang_option({1: 3, last: 1}).notes if "running" in note]
    assert len(notes) == (last > 48)
    assert all(note.startswith(f"Give --max-running-requests {last}: ") for note in notes)


@pytest.mark.parametrize("k_by_batch", [{}, {2: 1}, {1: 0}, {1: -1}])
def test_what_sglang_refuses_is_never_written(k_by_batch: dict[int, int]) -> None:
    """No entry, a negative step and only zero steps are refused."""
    with pytest.raises(ConfigError):
        sglang_option(k_by_batch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expression"), RULES)
def test_sglang_reads_the_file_so(source: Sources, name: str, expression: str) -> None:
    """Each expression on which the file's form depends is in SGLang's source."""
    parser = next(sglang_parser for sglang_parser in SGLANG_PARSERS if sglang_parser.name == name)
    node = place(source(parser.package, parser.version, parser.file), name)
    wanted = ast.dump(ast.parse(expression, mode="eval").body)
    assert wanted in map(ast.dump, ast.walk(node))
