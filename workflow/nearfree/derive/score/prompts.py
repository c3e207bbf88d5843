"""What others' prompts add to a decode step, where T is a mean over an output's tokens.

vLLM and TensorRT-LLM read a prompt in a step that decodes, whose products, experts and collectives
run the rows of both; SGLang reads it in a forward of its own, during which nothing is decoded. Of a
prompt only the last position has logits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import structs

from nearfree.core.modules.collective import COLLECTIVE
from nearfree.core.modules.dense_ffn import DENSE_FFN, GEMM
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.modules.stream_mixing import STREAM_MIXING
from nearfree.decoders.collectives import LOGITS
from nearfree.decoders.engines import SGLANG
from nearfree.decoders.modules import HEAD, requests
from nearfree.derive.engine_step.form import StepConstants, between_us, host_us
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.step import ROLES
from nearfree.derive.predict.forecast.total import total
from nearfree.derive.work_model.family import Flags
from nearfree.public.whole_models import WholeRow

APART = frozenset({SGLANG.name})
"""Engines that read prompts in forwards of their own. Source: sglang 0.5.9, in sglang/srt:
server_args.py:597 (enable_mixed_chunk is off) and managers/scheduler.py:2183-2204. vLLM's scheduler
fills the tokens that running requests leave of a step with waiting ones (vllm 0.20.2,
vllm/v1/core/sched/scheduler.py, Scheduler.schedule), and TensorRT-LLM's step takes requests of both
kinds (tensorrt_llm/_torch/pyexecutor/scheduler.py, SimpleScheduler.schedule_request)."""
_LAST_ALONE = (HEAD, LOGITS)
"""Modules that a prompt's last position alone enters. Source: sglang 0.5.9, layers/
logits_processor.py:320 (_get_pruned_states); logits_indices of vllm/v1/worker/gpu_model_runner.py;
gather_ids of tensorrt_llm/_torch/pyexecutor/model_engine.py."""
_OF_ROWS = (GEMM.name, DENSE_FFN.name, MOE_FFN.name, COLLECTIVE.name, STREAM_MIXING.name)
"""Modules whose T follows the rows of a step, whichever request they are of; others go through each
request by itself."""


class Prompts(NamedTuple):
    """The prompts of others that fall on one decode step.

    `share` is how many of a group of ranks are read in a step, `tokens` how long each is,
    `modules_us` what each takes of modules in microseconds. `apart` holds where it is read in a
    forward of its own, which has all that an engine's step has besides.
    """

    share: float
    tokens: int
    modules_us: float
    apart: bool

    def us(
        self, constants: StepConstants, *, layers: float, d_model: int, bandwidth_gb_s: float
    ) -> float:
        """Return what they add to a step by the constants of an engine, in microseconds."""
        between = between_us(
            constants, layers=layers, d_model=d_model, tokens=np.array([float(self.tokens)]),
            bandwidth_gb_s=bandwidth_gb_s,
        )  # fmt: skip
        step_us = host_us(constants, batch=1) if self.apart else -layers * constants.layer_us
        return self.share * (self.modules_us + float(between[0]) + step_us)


def prompts_of(
    served: Sequence[tuple[WholeRow, Deployment]], answerer: Answerer
) -> list[Prompts | None]:
    """Return the prompts that each row's steps read besides, None where T holds none.

    Between two tokens of a request the others' outputs end and begin again: of its group's other
    requests each is read once an output. Its own prompt comes before its first token.
    """
    holds = [(row, one) for row, one in served if row.holds_prefill]
    if not holds:
        return [None for _ in served]
    alone = [
        structs.replace(one, batch=one.parallel.dp, context=1, served=False) for _, one in holds
    ]
    rows = [requests(row.batch, one.parallel.dp) for row, one in holds]
    lengths = [row.isl or 1 for row, _ in holds]
    grid = {1, *rows, *lengths, *(n + isl for n, isl in zip(rows, lengths, strict=True))}
    questions = Questions(alone, sorted(grid))
    found = total(questions, answerer)
    latency, at = found.latency_us[:, : -len(ROLES)], {int(n): i for i, n in enumerate(found.grid)}
    of_rows, last = _kinds(questions, latency.shape[:2])
    taken = list[Prompts]()
    for place, ((row, one), own, isl) in enumerate(zip(holds, rows, lengths, strict=True)):
        apart = one.engine.name in APART
        us = latency[place]
        first, prompt = us[:, at[1]], us[:, at[isl]]
        beside = us[:, at[own + isl]] - us[:, at[own]]
        if apart:
            by_module = np.where(last[place], first, prompt)
        else:
            by_module = np.where(of_rows[place], beside, prompt - first)
            by_module = np.where(last[place], 0.0, by_module)
        others = max(row.batch / one.parallel.dp - 1, 0.0) / (row.osl or 1)
        taken.append(Prompts(others, isl, max(float(by_module.sum()), 0.0), apart))
    said = iter(taken)
    return [next(said) if row.holds_prefill else None for row, _ in served]


def _kinds(questions: Questions, shape: tuple[int, int]) -> tuple[Flags, Flags]:
    """Return which modules follow the rows of a step, and which see a prompt's last position alone.

    Both are [deployments, places].
    """
    uses = questions.uses
    of_rows, last = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for flags, chosen in (
        (of_rows, pl.col("module").is_in(_OF_ROWS)), (last, pl.col("role").is_in(_LAST_ALONE))
    ):  # fmt: skip
        seen = uses.filter(chosen)
        flags[seen["deployment"].to_numpy(), seen["place"].to_numpy()] = True
    return of_rows, last
