"""What drafts in a schedule, as the command line asks for it."""

import argparse
from typing import Any

import pytest
from msgspec import json
from nearfree.cli import make_parser
from nearfree.cli.common import config_of
from nearfree.cli.drafters import drafter_deployments
from nearfree.core.parallel import Parallel

from cli.conftest import Call
from cli.test_schedule import KEY

SERVED = ("schedule", "vllm", "--model", "qwen3_30b_a3b", "--platform", "h200", "--context", "512",
          "--acceptance", "0.9", "--longest", "4", "--largest-batch", "2")  # fmt: skip


@pytest.fixture
def call(ask: Call) -> Call:
    """Return a function that runs a command, or says what the same command said before."""
    return ask


def asked(*argv: str) -> argparse.Namespace:
    """Return a schedule's arguments."""
    return make_parser(SERVED).parse_args([*SERVED, *argv])


def test_the_kernel_that_is_named_is_of_the_model_s_experts(call: Call) -> None:
    """A dense draft model has none, and drafts beside it all the same."""
    named = ("--moe-backend", "triton", "--drafter", "qwen3_8b")
    code, out, err = call(*SERVED, *named)
    assert code == 0, err
    assert json.decode(out)[KEY]


@pytest.mark.parametrize(
    ("named", "runs"), [("vllm-mla==0.33.0", "vllm_fa3"), ("flash-attn==2.8.3", "flash_attn")]
)
def test_attention_that_is_named_runs_a_drafter_that_it_has_kernels_for(
    recorded: None, named: str, runs: str
) -> None:
    """That of the model's latents is none of a draft model's, which the engine's own runs."""
    args = asked("--attention", named, "--drafter", "qwen3_8b")
    drafting: list[Any] = list(drafter_deployments(args, config_of(args), 1))
    assert {each.attention.name for each in drafting} == {runs}


@pytest.mark.parametrize(
    ("argv", "parallel"),
    [
        (("--tp", "2", "--pp", "2"), Parallel(tp=2)),
        (("--tp", "2", "--pp", "2", "--gpus", "4"), Parallel(tp=2)),
        (("--gpus", "4"), Parallel(tp=4)),
    ],
)
def test_what_drafts_lies_on_the_last_stage(
    recorded: None, argv: tuple[str, ...], parallel: Parallel
) -> None:
    """Its GPUs are those of one pipeline stage, of which each holds its part of the whole model."""
    args = asked(*argv, "--drafter", "qwen3_8b")
    drafting: list[Any] = list(drafter_deployments(args, config_of(args), 1))
    (one,) = drafting
    assert one.parallel == parallel
    assert one.memory.gpus == parallel.gpus
