"""Time that other requests' prompts add to a decode step, where T is a mean over output tokens.

vLLM and TensorRT-LLM prefill a prompt in a decode step, whose products, experts and collectives run
the rows of both. SGLang prefills it in a separate forward, during which nothing is decoded. Only a
prompt's last position has logits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import structs

from nearfree.decoders.ranks.collectives import LOGITS
from nearfree.decoders.ranks.engines import SGLANG
from nearfree.decoders.ranks.modules import HEAD, requests
from nearfree.derive.engine_step.form import StepConstants, between_us, host_us
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import OF_ROWS, Deployment, Questions
from nearfree.derive.predict.forecast.total import ROLES, total
from nearfree.public.whole_models import WholeRow

SEPARATE_PREFILL = frozenset({SGLANG.name})
"""Engines that prefill in separate forwards. Source: sglang 0.5.9, in sglang/srt:
server_args.py:597 (enable_mixed_chunk is off) and managers/scheduler.py:2183-2204. vLLM's scheduler
gives the tokens that running requests leave of a step to waiting ones (vllm 0.20.2,
vllm/v1/core/sched/scheduler.py, Scheduler.schedule), and TensorRT-LLM's step takes requests of both
kinds (tensorrt_llm/_torch/pyexecutor/scheduler.py, SimpleScheduler.schedule_request)."""
_LAST_POSITION_ROLES = (HEAD, LOGITS)
"""Roles of modules that only a prompt's last position enters. Source: sglang 0.5.9, layers/
logits_processor.py:320 (_get_pruned_states); logits_indices of vllm/v1/worker/gpu_model_runner.py;
gather_ids of tensorrt_llm/_torch/pyexecutor/model_engine.py."""


class Prompts(NamedTuple):
    """The prompts of other requests that fall on one decode step.

    `share` is their mean number per step and data parallel group, `tokens` the length of each, and
    `modules_us` the time of modules that each adds. If `separate`, a prompt runs in a forward of
    its own, with an engine step's own host time and kernels between modules. `sums` are the
    all-reduces of a forward.
    """

    share: float
    tokens: int
    modules_us: float
    separate: bool
    sums: int

    def us(
        self, constants: StepConstants, *, layers: float, d_model: int, bandwidth_gb_s: float
    ) -> float:
        """Return the time that they add to a step with an engine's constants, in microseconds."""
        between = between_us(
            constants, layers=layers, sums=self.sums, d_model=d_model,
            tokens=np.array([float(self.tokens)]), bandwidth_gb_s=bandwidth_gb_s,
        )  # fmt: skip
        shared_us = constants.fixed_us(layers=layers, sums=self.sums)
        step_us = host_us(constants, batch=1) if self.separate else -shared_us
        return self.share * (self.modules_us + float(between[0]) + step_us)


def prompts_of(served: Sequence[tuple[WholeRow, Deployment]], answerer: Answerer) -> list[Prompts]:
    """Return the prompts that fall on the steps of each row whose T contains some.

    Every other request of a group is prefilled once per output, between two tokens of this one. A
    request's own prompt comes before its first token.
    """
    if not served:
        return []
    prompt_deployments = [
        structs.replace(deployment, batch=deployment.parallel.dp, context=1, served=False)
        for _, deployment in served
    ]
    decode_rows = [requests(row.batch, deployment.parallel.dp) for row, deployment in served]
    lengths = [row.isl or 1 for row, _ in served]
    mixed_rows = (n + isl for n, isl in zip(decode_rows, lengths, strict=True))
    questions = Questions(prompt_deployments, sorted({1, *decode_rows, *lengths, *mixed_rows}))
    forward = total(questions, answerer)
    latency_us = forward.latency_us[:, : -len(ROLES)]
    column = {int(n): index for index, n in enumerate(forward.grid)}
    is_row_module, is_last_only = (
        questions.places_of(condition, latency_us.shape[:2])
        for condition in (
            pl.col("module").is_in(OF_ROWS),
            pl.col("role").is_in(_LAST_POSITION_ROLES),
        )
    )
    prompts = list[Prompts]()
    for place, ((row, deployment), rows_per_step, isl) in enumerate(
        zip(served, decode_rows, lengths, strict=True)
    ):
        separate = deployment.engine.name in SEPARATE_PREFILL
        row_us = latency_us[place]
        one_us, prompt_us = row_us[:, column[1]], row_us[:, column[isl]]
        added_us = row_us[:, column[rows_per_step + isl]] - row_us[:, column[rows_per_step]]
        if separate:
            by_module = np.where(is_last_only[place], one_us, prompt_us)
        else:
            by_module = np.where(is_row_module[place], added_us, prompt_us - one_us)
            by_module = np.where(is_last_only[place], 0.0, by_module)
        share = max(row.batch / deployment.parallel.dp - 1, 0.0) / (row.osl or 1)
        modules_us = max(float(by_module.sum()), 0.0)
        prompts.append(Prompts(share, isl, modules_us, separate, deployment.sums))
    return prompts
