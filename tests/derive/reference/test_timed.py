"""The work model's answers with and without public curves of a kernel."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from nearfree.derive.reference.answer import Timed, TimedQuestions
from nearfree.derive.reference.groups import Key
from nearfree.derive.reference.record import RecordedReference
from nearfree.derive.reference.regimes import Reference
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.log.events import Event, RegimeBand

from derive.questions import LOG, RESOLVER
from derive.reference.made import (
    DEPTHS,
    EPSILON,
    HEADS,
    ROWS,
    noisy,
    products,
    reference,
)
from derive.work_model.forms import OF_FAMILY, facts_of

CONSTANTS = recorded_constants(LOG)
BANDS = {"R3": 0.01, "R2": 0.02, "R1": 0.4, "R0": 0.8}
OURS = reference(*products("h100"), bent=noisy(12))
MEASURED = {**ROWS, "d_model": DEPTHS[2]}
NEW = {**ROWS, "d_model": 5632}
SIBLING = {**NEW, "platform": "h200"}
STRANGER = {**NEW, "platform": "a100"}
UNKNOWN = HEADS
QUESTIONS = [MEASURED, NEW, SIBLING, STRANGER, UNKNOWN]


class Sealed:
    """An event that was read, by name."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id


def recorded(known: Reference = OURS, *, banded: bool = True) -> RecordedReference:
    """Return groups as the log holds them: each with an event, and one band per regime."""
    events: Mapping[Key, Any] = {key: Sealed(f"kernel of {key.platform}") for key in known.groups}
    bands_events = ("bands",) if banded else ()
    return RecordedReference(
        reference=known, events=events, bands_events=bands_events,
        bands={
            (name, "gemm", "bfloat16", ""): RegimeBand(
                regime=name, module="gemm", formats="bfloat16", routing="", band=band, curves=9
            )
            for name, band in BANDS.items()
        },
    )  # fmt: skip


def timed(
    *questions: dict[str, Any], known: RecordedReference | None = None
) -> dict[int, tuple[Timed, int]]:
    """Return the place of each question's T(N): its family and its row there."""
    timed_questions = TimedQuestions(facts_of(*questions), RESOLVER, CONSTANTS, reference=known)
    assert timed_questions.refusals() == {}
    return {
        question: (curve, row)
        for curve in timed_questions.curves()
        for row, question in enumerate(curve.asked)
    }


WITH = timed(*QUESTIONS, known=recorded())
WITHOUT = timed(*QUESTIONS)


def field(curves: dict[int, tuple[Timed, int]], name: str) -> list[Any]:
    """Return one field of each question, in order."""
    return [
        getattr(curve, name)[row] for curve, row in (curves[at] for at in range(len(QUESTIONS)))
    ]


def test_every_answer_says_its_regime() -> None:
    """A measured shape, a new one, a sibling, a stranger and an unknown kernel each have one."""
    assert field(WITH, "regime") == ["R3", "R2", "R1", "R0", "R0"]
    assert set(field(WITHOUT, "regime")) == {"R0"}


def test_a_known_gpu_is_in_sample() -> None:
    """Answers by the GPU's own curves are in sample; those by siblings and strangers are not."""
    assert field(WITH, "in_sample")[:4] == [True, True, False, False]
    assert field(WITH, "in_sample")[4] == field(WITHOUT, "in_sample")[4]


def test_each_answer_has_the_band_of_its_regime() -> None:
    """Each row has its regime's band, whatever else is asked; shared constants have theirs."""
    shared = WITHOUT[4][0].band[WITHOUT[4][1]]
    assert field(WITH, "band") == [*(BANDS[name] for name in ("R3", "R2", "R1", "R0")), shared]
    for place, question in enumerate(QUESTIONS):
        ((alone, row),) = timed(question, known=recorded()).values()
        assert alone.band[row] == field(WITH, "band")[place]


def test_an_answer_rests_on_the_events_of_its_groups_and_bands() -> None:
    """An answer names its kernels' events and the event of bands, if there is one."""
    mine = ["kernel of h100", "bands"]
    assert field(WITH, "calibration") == [*[mine] * 4, [CONSTANTS["attention_prefill"].event_id]]
    ((timed_forward, row),) = timed(NEW, known=recorded(banded=False)).values()
    assert timed_forward.calibration[row] == ["kernel of h100"]
    assert field(WITHOUT, "calibration")[0] == [CONSTANTS["gemm"].event_id]


def test_the_constants_are_named() -> None:
    """Constants of a kernel name regime, kernel, GPUs, curves; shared ones family and platforms."""
    assert field(WITH, "kernels") == [("cublas",)] * 4 + [()]
    assert field(WITHOUT, "kernels") == [()] * 5
    texts = field(WITH, "constants")
    for regime, text in zip(field(WITH, "regime")[:4], texts, strict=False):
        assert text.startswith(f"{regime}: gemm by cublas on h100, 6 curves")
    assert f"{DEPTHS[2]}x8192 of 1.0" in texts[0]
    assert texts[4] == field(WITHOUT, "constants")[4]
    assert texts[4].startswith("attention_prefill on ")


def test_t_of_n_is_what_the_groups_say() -> None:
    """T(N) and its ratio are the reference's; without a group they are the shared constants'."""
    for place in range(len(QUESTIONS)):
        curve, row = WITH[place]
        times, ratio = curve.latency_us[row], curve.ratio[row]
        assert ratio == pytest.approx(times / times[0])
        shared, at = WITHOUT[place]
        assert np.allclose(times, shared.latency_us[at]) == (place == 4)
    known = {
        int(part.part.rows["asked"][at]): group_times.latency_us[row]
        for part, _ in WITH.values()
        for rows, group_times in OURS.times(part.part)
        for row, at in enumerate(np.nonzero(rows)[0].tolist())
    }
    assert set(known) == {0, 1, 2, 3}
    for place, times in known.items():
        assert WITH[place][0].latency_us[WITH[place][1]].tolist() == times.tolist()


def test_answers_carry_it_all() -> None:
    """Each row of answers has its regime, band (low and high), constants and events."""
    timed_questions = TimedQuestions(
        facts_of(*QUESTIONS), RESOLVER, CONSTANTS, reference=recorded()
    )
    answers = timed_questions.answers([EPSILON]).sort("asked")
    assert answers["regime"].to_list() == field(WITH, "regime")
    assert answers["constants"].to_list() == field(WITH, "constants")
    assert answers["calibration"].to_list() == field(WITH, "calibration")
    for row in answers.iter_rows(named=True):
        curve, at = WITH[row["asked"]]
        n, logs = curve.part.features["n"][at], np.log(curve.ratio[at])
        low, n_max, high = (
            n[np.nonzero((logs <= np.log1p(EPSILON) + move) | (n == n[0]))[0].max()]
            for move in (-curve.band[at], 0.0, curve.band[at])
        )
        assert (row["low"], row["n_max"], row["high"]) == (low, n_max, high)
    assert answers["refusal"].null_count() == len(QUESTIONS)


def test_a_measured_curve_is_answered_as_it_was_measured() -> None:
    """In R3 the ratio T(N) / T(1) is that of the kernel's own curve, within rounding."""
    timed_questions = TimedQuestions(
        facts_of(*products("h100")), RESOLVER, CONSTANTS, reference=recorded()
    )
    (group,) = OURS.groups.values()
    ratio = np.exp(group.ratio.values(group.counts))
    ratios = (
        timed_questions.ratios().sort("asked", "n")["ratio"].to_numpy().reshape(len(DEPTHS), -1)
    )
    step = (group.residual.high - group.residual.low) / 255
    off = np.abs(np.log(ratios[:, : ratio.shape[1]] / ratio))[group.counts]
    assert off.max() <= step + (group.ratio.high - group.ratio.low) / 510 + 2e-4


@pytest.mark.parametrize(("platform", "regime"), [("h100", "R2"), ("h800", "R0")])
def test_collectives_stand_on_their_own_platform_or_on_others(platform: str, regime: str) -> None:
    """Constants of collectives are those of the GPU, in sample, or else of other GPUs."""
    event: Event = CONSTANTS["collective_nccl"]
    assert (platform in event.data.platforms) == (regime == "R2")
    question = {**OF_FAMILY["collective_nccl"], "platform": platform}
    ((timed_forward, row),) = timed(question, known=recorded()).values()
    assert (timed_forward.regime[row], timed_forward.in_sample[row]) == (regime, regime == "R2")
    assert timed_forward.calibration[row] == [event.event_id]


@pytest.mark.parametrize(("gpus", "regime"), [(4, "R2"), (8, "R0")])
def test_collectives_of_more_gpus_than_curves_have_stand_on_others(gpus: int, regime: str) -> None:
    """Curves of GB200 end at one machine's GPUs, though NVLink joins the GPUs of several."""
    question = {**OF_FAMILY["collective_nccl"], "platform": "gb200", "gpus": gpus}
    ((timed_forward, row),) = timed(question, known=recorded()).values()
    assert (timed_forward.regime[row], timed_forward.in_sample[row]) == (regime, regime == "R2")
