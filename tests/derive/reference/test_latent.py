"""Latent attention in the regimes: constants of one position, and refusals without a kernel."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from nearfree.core.setting import Setting
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.reference.build import groups_of
from nearfree.derive.reference.groups import form_us
from nearfree.derive.reference.record import group_of
from nearfree.derive.reference.regimes import R0, R2, R3, Reference
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.work_model.families import FAMILIES
from nearfree.log.events import LatencyImported
from public.test_curves import curve

from derive.questions import RESOLVER
from derive.reference.kept import kept_events
from derive.reference.made import CHIPS, EPSILON, curves, known, noisy
from derive.reference.test_record import event_of
from derive.reference.test_timed import recorded
from derive.work_model.forms import MLA, SPARSE_LAYER, facts_of, prepared, start

CONTEXTS = tuple(2**step for step in range(8, 17))
HEADS = (8, 16, 32, 64)
TRUE = start(FAMILIES["mla_cached"], reread=0.1)


def decoded(platform: str = "h100") -> list[LatencyImported]:
    """Return curves of one position over contexts that follow the form."""
    imported = []
    for heads in HEADS:
        questions = [
            {**MLA, "heads": heads, "context": context, "platform": platform}
            for context in CONTEXTS
        ]
        (part,) = prepared(*questions)
        times = FAMILIES["mla_cached"].latency_us(part.features, TRUE, "")[:, 0]
        row = part.rows.row(0, named=True)
        setting = Setting(**{name: row[name] for name in SETTING_COLUMNS if name != "setting_key"})
        imported.append(
            replace(
                curve(setting, platform=platform, kernel=row["kernel"],
                      backend_version=row["backend_version"]),
                n=(1,) * len(CONTEXTS), contexts=CONTEXTS, latency_us=tuple(times.tolist()),
            )
        )  # fmt: skip
    return imported


@cache
def ours() -> Reference:
    """Return the groups of those curves."""
    return known(decoded())


def timed_questions(
    *questions: dict[str, Any], reference: Reference | None = None
) -> TimedQuestions:
    """Return questions with the known kernels and without shared constants."""
    of = recorded(reference or ours())
    return TimedQuestions(facts_of(*questions), RESOLVER, {}, reference=of)


def test_points_over_contexts_are_a_kernel() -> None:
    """Each point of a curve over contexts gives T(1) there; its kernel is named whoever ran it."""
    ((key, group),) = ours().groups.items()
    assert (key.family, key.backend, key.kernel) == ("mla_cached", "fa3", "fa3")
    assert group.curves.height == len(HEADS) * len(CONTEXTS)
    assert sorted(set(group.curves["context"])) == list(CONTEXTS)
    assert np.abs(group.residual.values(group.counts)).max() < 0.05


def test_several_positions_are_r0_with_the_kernels_constants() -> None:
    """T(1) is the measured one; T(N) is from the form alone, as the answer says."""
    question = {**MLA, "platform": "h100", "heads": 16, "context": 65536}
    (timed,) = timed_questions(question).curves()
    assert timed.regime == [R0]
    assert "mla_cached by fa3 on h100" in timed.constants[0]
    (part,) = prepared(question)
    true = FAMILIES["mla_cached"].latency_us(part.features, TRUE, "")
    assert timed.latency_us[0] == pytest.approx(true[0], rel=0.08)
    assert timed.band == pytest.approx([2.0 * 0.8])
    assert timed.rows is not None
    assert (timed.rows == 64).all()


def test_t1_is_known_on_its_gpu_and_a_sibling_alone() -> None:
    """On any other GPU T(1) is from constants of other GPUs as well."""
    question = {**MLA, "heads": 16, "context": 65536}
    for platform, known_platforms in (("h100", True), ("h200", True), ("a100", False)):
        every = timed_questions({**question, "platform": platform})
        assert every.kernels_of(0) == ("fa3",)
        assert every.at_one_position(0) == known_platforms


def test_an_engines_choice_is_the_kernel_that_was_measured() -> None:
    """Up to 512 positions vLLM decodes with the kernel that was measured in SGLang."""
    engine = {**MLA, "backend": "vllm_mla", "kernel": None, "backend_version": "0.20.2"}
    (timed,) = timed_questions({**engine, "platform": "h100", "api": None}).curves()
    assert "mla_cached by fa3 on h100" in timed.constants[0]
    exits = timed_questions({**engine, "platform": "h100", "api": None}).answers([0.2])
    assert "flashattn_mla.py" in exits["evidence"][0]


def test_without_its_kernel_a_question_is_refused() -> None:
    """A family without shared constants is refused, whatever else is known."""
    layer = {**SPARSE_LAYER, "platform": "h100"}
    for questions in (
        timed_questions(layer),
        TimedQuestions(facts_of(layer), RESOLVER, {}, reference=None),
    ):
        assert questions.refusals() == {0: "no constants of layer_attention in the log"}
    mixed = timed_questions({**MLA, "platform": "h100"}, layer)
    assert mixed.refusals() == {1: "no constants of layer_attention in the log"}
    assert [curve.asked for curve in mixed.curves()] == [[0]]


def test_a_layer_of_known_heads_is_r2_and_unpacks_with_its_context() -> None:
    """Curves of a layer keep context and projections; a new rank is interpolated."""
    questions = [
        {**SPARSE_LAYER, "platform": "h100", "heads": heads, "context": context}
        for heads in (8, 16, 32) for context in (0, 8192)
    ]  # fmt: skip
    (every,) = curves(*questions, bent=noisy(3))
    ((key, group),) = groups_of(every, EPSILON).items()
    (event,) = kept_events(event_of(group))
    again = group_of(event)
    assert again.curves["context"].to_list() == group.curves["context"].to_list()
    assert again.curves["projected"].to_list() == group.curves["projected"].to_list()
    (timed,) = timed_questions(
        {**SPARSE_LAYER, "platform": "h100", "heads": 64},
        reference=Reference({key: again}, CHIPS),
    ).curves()
    assert timed.regime == [R2]


@pytest.mark.parametrize("span", [1, 4])
def test_a_layer_is_kept_with_its_span(span: int) -> None:
    """The positions per entry are stored with the curves; curves stored without them have one."""
    layer = {**SPARSE_LAYER, "platform": "h100", "span": span}
    (every,) = curves(*({**layer, "heads": heads} for heads in (4, 8, 16, 32)), bent=noisy(3))
    ((_, group),) = groups_of(every, EPSILON).items()
    assert set(group.curves["span"]) == {span}
    (event,) = kept_events(event_of(group))
    assert set(group_of(event).curves["span"]) == {span}


def test_an_engines_layer_of_entries_is_the_one_that_was_measured() -> None:
    """Curves of DeepSeek V4's layers are found by engine and span; deployments name engines."""
    layer = {**SPARSE_LAYER, "platform": "h100", "span": 4, "kernel": "FLASHMLA_SPARSE_DSV4",
             "backend": "vllm", "backend_version": "0.24.0"}  # fmt: skip
    (every,) = curves(*({**layer, "heads": heads} for heads in (4, 8, 16, 32)), bent=noisy(3))
    known_layers = Reference(groups_of(every, EPSILON), CHIPS)
    serves = {**layer, "backend": "vllm_mla", "kernel": None, "backend_version": "0.33.0"}
    (timed,) = timed_questions(serves, {**serves, "heads": 64}, reference=known_layers).curves()
    assert timed.regime == [R3, R2]
    assert all("by FLASHMLA_SPARSE_DSV4 on h100" in constant for constant in timed.constants)
    (other,) = timed_questions({**serves, "backend": "sglang_mla"}, reference=known_layers).curves()
    assert other.regime == [R0]


def test_another_cache_has_the_constants_of_the_known_one() -> None:
    """A cache format without curves is answered by the form with another format's constants: R0."""
    ((key, group),) = ours().groups.items()
    question = {**MLA, "platform": "h100", "heads": 16, "context": 65536}
    (part,) = prepared(question)
    of_bytes = Reference({key._replace(kv_dtype="float8"): group}, CHIPS)
    ((rows, times),) = of_bytes.times(part)
    assert rows.all()
    assert times.regime == [R0]
    assert times.curves == [()]
    assert times.latency_us == pytest.approx(form_us(group.key.family, group.values, part.features))
    (elsewhere,) = prepared({**question, "platform": "b200"})
    assert not of_bytes.covers(elsewhere).any()
