"""Attention in decoding: T(1) from public curves of the kernel, growth from shared constants."""

import re
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.core.setting import Setting
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.reference.answer import Timed, TimedQuestions
from nearfree.derive.reference.groups import Group
from nearfree.derive.reference.record import group_of, newest_kernels
from nearfree.derive.reference.regimes import NEAREST_TEXT, R0, Reference
from nearfree.derive.work_model.attention import decoders
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.log.events import LatencyImported
from public.test_curves import curve

from derive.questions import ATTENTION, LOG, RESOLVER, ROOT, ask
from derive.reference.made import CHIPS, EPSILON, known
from derive.reference.test_timed import recorded
from derive.work_model.forms import facts_of

CONTEXTS = tuple(2**step for step in range(8, 15))
HEADS = ((8, 1), (16, 2), (32, 8), (64, 8))
BETA = 4800e3
"""What the H200's memory brings in a microsecond, bytes."""
CALL = {
    **ATTENTION, "backend": "vllm_fa3", "backend_version": "0.33.0", "platform": "h200",
    "api": "varlen", "page_size": 16, "heads": 32, "kv_heads": 8, "head_dim": 128,
}  # fmt: skip


def read_us(heads: tuple[int, int], context: int) -> float:
    """Return the least time of reading the keys and values of a step, in microseconds."""
    return 2.0 * 64 * context * heads[1] * 128 * 2 / BETA


def decoded(
    kernel: str = "vllm_flash_attn_fa3",
    share: float = 0.8,
    *,
    engine: str = "vllm",
    fixed_us: float = 20.0,
) -> list[LatencyImported]:
    """Return curves of one position over contexts: a fixed time, and reads at a share of beta."""
    return [
        replace(
            curve(
                Setting(module="attention", backend=engine, dtype="bfloat16", batch=64, context=256,
                        heads=heads[0], kv_heads=heads[1], head_dim=128),
                platform="h200", kernel=kernel, backend_version="0.24.0",
            ),
            n=(1,) * len(CONTEXTS), contexts=CONTEXTS,
            latency_us=tuple(fixed_us * (share < 1) + read_us(heads, context) / share
                             for context in CONTEXTS),
        )
        for heads in HEADS
    ]  # fmt: skip


def timed_question(question: dict[str, Any], reference: Reference) -> Timed:
    """Return T(N) of a question, from shared constants and the known kernels."""
    shared = recorded_constants(LOG)
    of = recorded(reference)
    (timed,) = TimedQuestions(facts_of(question), RESOLVER, shared, reference=of).curves()
    return timed


NONE = Reference({}, CHIPS)


@cache
def public() -> Reference:
    """Return the groups of a kernel for decoding."""
    return known(decoded())


def test_curves_over_contexts_are_a_kernel_by_its_public_name() -> None:
    """Each point gives T(1) at its context and batch, under the kernel's public name."""
    ((key, group),) = public().groups.items()
    assert (key.family, key.backend) == ("attention_cached", key.kernel)
    assert key.kernel == "vllm_flash_attn_fa3"
    assert group.curves.height == len(HEADS) * len(CONTEXTS)
    assert sorted(set(group.curves["context"])) == list(CONTEXTS)


def test_what_came_from_a_cache_is_left_out() -> None:
    """Points at which keys and values arrived faster than memory can read them are left out."""
    assert known(decoded(share=1.25)).groups == {}


def test_another_kernel_is_none_of_a_backend() -> None:
    """A kernel that belongs to no backend makes no group."""
    assert known(decoded("vllm_flash_attn_fa4")).groups == {}


@pytest.mark.parametrize("platform", ["h200", "h100"])
def test_t1_is_the_kernels_and_growth_is_the_shared_constants(platform: str) -> None:
    """On its GPU and a sibling T(1) is the kernel's; it grows with N as without the curves."""
    question = {**CALL, "batch": 64, "context": 4096, "platform": platform}
    ours, without = timed_question(question, public()), timed_question(question, NONE)
    if platform == "h200":
        assert ours.latency_us[0, 0] == pytest.approx(20.0 + read_us((32, 8), 4096) / 0.8, rel=0.05)
    grown = [
        reference_.latency_us[0] - reference_.latency_us[0, 0] for reference_ in (ours, without)
    ]
    assert grown[0] == pytest.approx(grown[1])
    assert np.all(np.diff(ours.latency_us[0]) >= 0)
    assert ours.ratio[0] == pytest.approx(ours.latency_us[0] / ours.latency_us[0, 0])
    assert ours.band == pytest.approx(without.band)
    assert ours.regime == [R0]
    assert ours.kernels == [("vllm_flash_attn_fa3",)]
    assert list(ours.at_one_position) == [True]
    assert list(without.at_one_position) == [False]
    text = re.sub(NEAREST_TEXT, "", ours.constants[0])
    shared_on = without.constants[0].removeprefix("attention_cached ")
    assert shared_on.startswith("on a100, h100")
    assert text.endswith(f" curves, of more positions {shared_on}")
    assert text != ours.constants[0]
    assert {*without.calibration[0]} < {*ours.calibration[0]}


@pytest.mark.parametrize(
    "other", [{"platform": "l40s", "backend": "flash_attn", "backend_version": "2.8.3"},
              {"platform": "a100", "backend": "flash_attn", "backend_version": "2.8.3"}],
)  # fmt: skip
def test_of_other_gpus_and_kernels_nothing_is_said(other: dict[str, Any]) -> None:
    """The curves answer neither for another architecture nor for another kernel."""
    question = {**CALL, **other, "page_size": 256}
    assert timed_question(question, public()).constants == timed_question(question, NONE).constants
    assert timed_question(question, public()).kernels == [()]


def test_an_engines_own_kernel_comes_before_its_backends() -> None:
    """A question that names the engine's kernel uses its curves, whatever gives the tiles."""
    other = known(decoded("fa3", engine="sglang", fixed_us=12.0))
    both = Reference({**public().groups, **other.groups}, CHIPS)
    question = {**CALL, "batch": 64, "context": 4096}
    own = timed_question({**question, "kernel": "fa3"}, both)
    assert own.kernels == [("fa3",)]
    assert timed_question(question, both).kernels == [("vllm_flash_attn_fa3",)]
    assert own.latency_us[0, 0] == pytest.approx(12.0 + read_us((32, 8), 4096) / 0.8, rel=0.05)


def test_a_grid_that_begins_later_has_constants_alone() -> None:
    """A grid from N = 2 on does not contain T(1), so curves of one position are not used."""
    question = {**CALL, "batch": 64, "context": 4096, "baseline": 2}
    ours, without = timed_question(question, public()), timed_question(question, NONE)
    assert ours.latency_us[0] == pytest.approx(without.latency_us[0])
    assert (ours.kernels, ours.constants) == ([()], without.constants)


def test_several_positions_of_a_table_s_kernel_are_refused() -> None:
    """A curve over N of an engine's own kernel is refused, since no rule gives its tiles."""
    question = {**CALL, "backend": "vllm", "kernel": "vllm_flash_attn_fa3"}
    timed = TimedQuestions(facts_of(question), RESOLVER, recorded_constants(LOG))
    assert timed.refusals() == {0: "no rules of the attention kernels of vllm are read"}
    assert timed.answers([EPSILON]).height == 1


def test_wider_heads_have_other_kernels() -> None:
    """The curves do not answer for heads wider than 256 elements."""
    for width, expected in ((256, "vllm_flash_attn_fa3"), (512, None)):
        assert decoders(facts_of({**CALL, "head_dim": width})) == [expected]


_KNOWN, _ = newest_kernels(LOG)
_DECODING = sorted((key for key in _KNOWN if key.family == "attention_cached"), key=str)


def _questions(group: Group) -> pl.DataFrame:
    """Return some curves of a group as calls of a backend with the engine's kernel."""
    names = ("batch", "context", "heads", "kv_heads", "head_dim")
    rows = group.curves.select(names).gather_every(9).to_dicts()
    return ask(
        *(
            {"module": "attention", "backend": "flashinfer_fa2", "backend_version": "0.7.2.post1",
             "platform": group.key.platform, "kv_dtype": group.key.kv_dtype,
             "kernel": group.key.kernel, **row}
            for row in rows
        )
    )  # fmt: skip


@pytest.mark.parametrize("key", _DECODING, ids=lambda key: f"{key.platform}-{key.kernel}")
def test_what_was_measured_is_answered(key: Any) -> None:
    """For a measured shape T(1) is that of its own curve."""
    group = group_of(_KNOWN[key])
    answerer = Answerer(LOG, Config(ROOT / "config"), offline=True, log_alone=True)
    (timed,) = answerer.timed(_questions(group)).curves()
    (places,) = np.nonzero(np.arange(group.count) % 9 == 0)
    ratios = timed.latency_us[np.argsort(timed.asked), 0] / group.first_us[places]
    assert np.abs(np.log(ratios)).max() < 0.02
