"""Host time of steps outside of graphs: single kernel launches, and scheduling without overlap.

Between two synchronisations the GPU runs what the host launches, and the phase takes the longer of
the two. Nothing here was fitted: the numbers come from published rows that no score contains. The
time of one launch is in `work_model/launches.py`.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from nearfree.backends.names import BackendRelease, is_since
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.decoders.state_kinds import State
from nearfree.derive.engine_step.form import LAYER_KERNELS
from nearfree.derive.work_model.launches import KERNELS, LAUNCH_US


class Since(NamedTuple):
    """A release and the month in which it came out, (year, month)."""

    release: str
    month: tuple[int, int]

    def includes(self, version: str | None) -> bool:
        """Return whether a version is this release or later; None counts as the newest.

        A version that is no number may name its month, as in `main (2025-07)`.
        """
        month = re.search(r"\((\d{4})-(\d{2})\)", version or "")
        if month:
            return (int(month[1]), int(month[2])) >= self.month
        return is_since(version, self.release)


class Drafting(NamedTuple):
    """Host time of an engine's drafting, and the rows whose logits it computes, by release.

    launches
        Kernels that one run of the drafter launches outside of graphs.
    mapped
        Further launches where the drafter has its own vocabulary, to map it to the model's.
    captured, captured_early
        The first release whose graph holds the whole draft, so that there are no such launches;
        the second is that for models of `is_early` kinds.
    overlapped, exposed_us
        Before this release the GPU waits `exposed_us` for the scheduler in a step with drafts.
    drawn
        From `overlapped` until this release, the first run of a draft computes logits of all its
        rows; all other releases compute one row per request. None where no release computes all.
    """

    launches: int
    mapped: int
    captured: Since
    captured_early: Since
    overlapped: Since
    exposed_us: float
    drawn: Since | None = None


DRAFTING: Mapping[str, Drafting] = {
    "vllm": Drafting(
        launches=21, mapped=4, captured=Since("0.29.0", (2026, 9)),
        captured_early=Since("0.26.0", (2026, 7)),
        overlapped=Since("0.14.0", (2026, 1)), exposed_us=970.0,
    ),
    "sglang": Drafting(
        launches=0, mapped=0, captured=Since("0", (0, 1)),
        captured_early=Since("0", (0, 1)),
        overlapped=Since("0.5.11", (2026, 5)), exposed_us=1107.0,
        drawn=Since("0.5.20", (2026, 9)),
    ),
}  # fmt: skip
"""vLLM: launches of vllm 0.10.0, vllm/v1/spec_decode/eagle.py:175-237 (15 that prepare inputs,
two pieces of a graph, two of attention, LM head, choice of a token), and
vllm/model_executor/models/llama_eagle3.py:208-228; in the second model runner a graph holds the
draft (vllm 0.33.0, vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py), which up to
0.28.0 runs models of `early` kinds only (vllm/config/vllm.py of 0.26.0, lines 605-622, the oldest
release read in which it accepts a varying number of drafts, and of 0.28.0, lines 69-80). Overlap is
the default from vllm-project/vllm pull 31998 on. Exposed: mean ITL of Llama 3.1 8B with EAGLE-3,
K = 4, b = 1 before and with overlap, 28.14 and 27.17 ms (pull 25872).

SGLang: a graph holds the draft (sglang 0.5.6,
sglang/srt/speculative/eagle_draft_cuda_graph_runner.py). Drafting turned overlap off (sglang 0.5.6,
sglang/srt/server_args.py:1686-1694) until 0.5.11 (sglang/srt/environ.py:459). Rows of logits:
sglang/srt/layers/logits_processor.py:418 of 0.5.11, 342 of 0.5.20. Exposed: accepted tokens over
tokens per second of Llama 3.1 8B with EAGLE, K = 5, b = 1: 2.99 / 246.80 and 3.01 / 273.43, 12.115
and 11.008 ms (sgl-project/sglang pull 11398). TensorRT-LLM's launches and overlap are not known."""


def launch_count(uses: tuple[ModuleUse, ...], layers: float) -> int:
    """Return the number of kernels that a forward launches without a graph."""
    modules = sum(use.count * KERNELS.get(use.setting.module, 1) for use in uses)
    return modules + round(LAYER_KERNELS * layers)


_EARLY = frozenset({"deepseek_v2", "granitemoe", "qwen2_moe"})


def is_early(decoder: Decoder) -> bool:
    """Return whether a model is of the kinds that vLLM's second model runner supported first.

    These are models without experts and states, and a few with experts.
    """
    states = any(isinstance(kind, State) for kind in decoder.attention)
    return decoder.model_type in _EARLY or not (decoder.experts or states)


def launches_us(engine: BackendRelease, decoder: Decoder, *, mapped: bool) -> float:
    """Return the host time of a drafter run's launches outside of graphs, in microseconds.

    `decoder` is the target model; `mapped` says whether the drafter has a vocabulary of its own.
    """
    host = DRAFTING.get(engine.name)
    if host is None:
        return 0.0
    captured = host.captured_early if is_early(decoder) else host.captured
    if captured.includes(engine.version):
        return 0.0
    return LAUNCH_US * (host.launches + (host.mapped if mapped else 0))


def exposed_us(engine: BackendRelease) -> float:
    """Return the host time during which the GPU waits in a step with drafts, in microseconds."""
    host = DRAFTING.get(engine.name)
    return 0.0 if host is None or host.overlapped.includes(engine.version) else host.exposed_us


def draws_all(engine: BackendRelease) -> bool:
    """Return whether the first run of a draft computes logits of all its rows."""
    host = DRAFTING.get(engine.name)
    if host is None or host.drawn is None:
        return False
    version = engine.version
    return host.overlapped.includes(version) and not host.drawn.includes(version)
