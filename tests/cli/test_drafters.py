"""Drafters in a schedule, as given on the command line."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from decoders.files import write
from msgspec import json
from msgspec.structs import replace
from nearfree.cli import make_parser
from nearfree.cli.common import config_of
from nearfree.cli.drafters import drafter_cache, drafter_deployments
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype, uniform

from cli.conftest import Call
from cli.schedules import KEY

SERVED = ("schedule", "vllm", "--model", "qwen3_30b_a3b", "--platform", "h200", "--context", "512",
          "--acceptance", "0.9", "--longest", "4", "--largest-batch", "2")  # fmt: skip


@pytest.fixture
def call(ask: Call) -> Call:
    """Return a function that runs a command, or returns the answer of an equal one."""
    return ask


def schedule_arguments(*argv: str) -> argparse.Namespace:
    """Return a schedule's arguments."""
    return make_parser(SERVED).parse_args([*SERVED, *argv])


def test_the_named_kernel_is_that_of_the_models_experts(call: Call) -> None:
    """A dense draft model has no experts, and drafts all the same."""
    options = ("--moe-backend", "triton", "--drafter", "qwen3_8b")
    code, out, err = call(*SERVED, *options)
    assert code == 0, err
    assert json.decode(out)[KEY]


@pytest.mark.parametrize(
    ("named", "runs"), [("vllm-mla==0.33.0", "vllm_fa3"), ("flash-attn==2.8.3", "flash_attn")]
)
def test_named_attention_runs_a_drafter_if_it_has_its_kernels(
    recorded: None, named: str, runs: str
) -> None:
    """Latent attention runs no draft model, which the engine's own backend runs instead."""
    args = schedule_arguments("--attention", named, "--drafter", "qwen3_8b")
    drafting: list[Any] = list(drafter_deployments(args, config_of(args), 1))
    assert {drafter.attention.name for drafter in drafting} == {runs}


@pytest.mark.parametrize(
    ("argv", "parallel"),
    [
        (("--tp", "2", "--pp", "2"), Parallel(tp=2)),
        (("--tp", "2", "--pp", "2", "--gpus", "4"), Parallel(tp=2)),
        (("--gpus", "4"), Parallel(tp=4)),
    ],
)
def test_the_drafter_is_on_the_last_stage(
    recorded: None, argv: tuple[str, ...], parallel: Parallel
) -> None:
    """Its GPUs are those of one pipeline stage, each with its part of the drafter."""
    for named in ("qwen3_8b", "config/whole/heads/eagle3_llama_3_1_8b.json"):
        args = schedule_arguments(*argv, "--drafter", named)
        drafting: list[Any] = list(drafter_deployments(args, config_of(args), 1))
        (drafter,) = drafting
        assert drafter.parallel == parallel
        assert drafter.memory.gpus == parallel.gpus


@pytest.mark.parametrize(
    ("engine", "stored", "argv", "kv"),
    [
        ("vllm", "bfloat16", ("--kv-dtype", "fp8"), "float8"),
        ("vllm", "float8", (), "float8"),
        ("vllm", "float8", ("--kv-dtype", "bf16"), "bfloat16"),
        ("vllm", "bfloat16", (), "float16"),
        ("sglang", "bfloat16", ("--kv-dtype", "fp8"), "float8"),
        ("sglang", "float8", (), "float16"),
    ],
)
def test_a_drafter_caches_as_the_engine_is_told(
    recorded: None, engine: str, stored: Dtype, argv: tuple[str, ...], kv: str
) -> None:
    """It has the format of the option, in vLLM that of the target's files, and else its own."""
    args = schedule_arguments(*argv, "--drafter", "config/whole/heads/eagle3_llama_3_1_8b.json")
    args.engine, config = engine, config_of(args)
    target: Any = drafter_deployments(schedule_arguments("--drafter", "qwen3_8b"), config, 1)[0]
    named = args.kv_dtype or stored
    target = replace(target, precision=replace(uniform("bfloat16"), kv=named))
    cache = drafter_cache(args, target)
    (drafter,) = drafter_deployments(args, config, 1, cache)
    assert drafter.formats.kv == kv
    own = drafter_deployments(args, config, 1)[0].memory
    assert drafter.memory is not None
    assert own is not None
    assert drafter.memory.kv_bytes * (2 if kv == "float8" else 1) == own.kv_bytes


def test_a_drafter_that_the_gpus_cannot_share_is_named(call: Call, tmp_path: Path) -> None:
    """Its heads are not those of the model, and its cost can be told in place of it."""
    small = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
        "tie_word_embeddings": True, "use_sliding_window": False,
    }  # fmt: skip
    path = str(write(tmp_path, small))
    code, _, err = call(*SERVED, "--tp", "4", "--drafter", path)
    assert code == 2
    assert f"error: {path} drafts: tp 4 does not divide 14 heads over 2 of keys" in err
    assert err.rstrip().endswith("or what a draft costs by --draft-cost")
    code, _, err = call(*SERVED, "--tp", "4", "--draft-cost", "0.1")
    assert code == 0, err
