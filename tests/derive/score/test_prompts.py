"""What other requests' prompts add to a published step."""

import pytest
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.derive.engine_step.form import StepConstants
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.score.prompts import Prompts
from nearfree.derive.score.whole_steps import TimedStep, timed_steps
from nearfree.public.whole_models import WholeRow

from derive.questions import LOG, ROOT

CONFIG = Config(ROOT / "config")
ANSWERER = Answerer(LOG, CONFIG, offline=True)
FREE = StepConstants(layer_us=0.0, step_us=0.0, request_us=0.0)


def timed(*several: dict[str, object]) -> list[TimedStep]:
    """Return answered rows of a model with experts on four H100."""
    base = WholeRow(line=2, model="Qwen3-235B-A22B-FP8", config="qwen3_235b_a22b_fp8", gpu="H100",
                    engine="trtllm", batch=64, t_us=8000.0, precision="fp8", kv_dtype="auto", tp=4,
                    ep=4, context=1280, how="mean TPOT", isl=128, osl=256)  # fmt: skip
    rows = [replace(base, **changes) for changes in several]  # type: ignore[arg-type]
    return timed_steps(rows, CONFIG, ANSWERER)


def prompts(*several: dict[str, object]) -> list[Prompts]:
    """Return the prompt tokens per step of each row."""
    return [curve.prompts for curve in timed(*several) if curve.prompts]


def test_prompts_are_in_a_mean_alone() -> None:
    """A median of the times between tokens, or an output without length, holds no prompts."""
    mean, median, bare = timed({}, {"how": "median ITL"}, {"osl": None})
    assert mean.prompts
    assert median.prompts is None
    assert bare.prompts is None
    beta = 3350.0
    assert mean.modules_us == median.modules_us
    assert mean.predicted_us(FREE, beta) > median.predicted_us(FREE, beta)


def test_a_request_waits_for_others_prompts_alone() -> None:
    """The other b - 1 prompts of a group count once per output; a request's own does not."""
    shares = [prompt.share for prompt in prompts({}, {"osl": 512}, {"batch": 1}, {"batch": 2})]
    assert shares == [63 / 256, 63 / 512, 0.0, 1 / 256]
    (parted,) = prompts({"tp": 1, "dp": 4})
    assert parted.share == 15 / 256


def test_a_prompt_beside_decodes_wakes_few_experts() -> None:
    """Rows of a prompt join those of 64 requests, which have read most weights of experts.

    By itself the same prompt reads them all, as it would with one request that decodes.
    """
    many, one, apart = prompts({}, {"batch": 2}, {"engine": "sglang"})
    assert not many.separate
    assert many.modules_us < one.modules_us / 2
    assert apart.separate
    assert apart.modules_us > many.modules_us
    assert many.tokens == one.tokens == apart.tokens == 128


def test_a_forward_apart_has_all_that_a_step_has() -> None:
    """SGLang's prompts launch all layers again; in other engines they add rows only."""
    constants = StepConstants(layer_us=10.0, step_us=100.0, request_us=1.0, sum_wait_us=2.0)
    about = {"layers": 10, "d_model": 1000, "bandwidth_gb_s": 1000.0}
    moved = 10 * 5 * 4 * 1000 * 50 / 1e6
    for apart, besides in ((False, 0.0), (True, 10 * 10 + 3 * 2 + 100 + 1)):
        prompt_times = Prompts(share=0.5, tokens=50, modules_us=7.0, separate=apart, sums=3)
        assert prompt_times.us(constants, **about) == pytest.approx(0.5 * (7 + moved + besides))  # type: ignore[arg-type]


def test_a_prompt_has_logits_of_its_last_position_alone() -> None:
    """The vocabulary does not change what a prompt adds beside decodes."""
    from nearfree.derive.predict.forecast.deployment import Questions
    from nearfree.derive.predict.forecast.total import total

    (step,) = timed({"isl": 2048})
    assert step.deployment is not None
    assert step.prompts is not None
    alone = replace(step.deployment, batch=1, context=1, served=False)
    total_us = total(Questions([alone], [1, 64, 2048, 2112]), ANSWERER)
    latency, roles = total_us.latency_us[0], total_us.roles[0]
    head = [place for place, role in roles.items() if role in ("LM head", "logits gather")]
    assert len(head) == 2
    assert (latency[head, 3] - latency[head, 1]).sum() > 100
    rest = [place for place, role in roles.items() if place not in head and role != "attention"]
    attention = [place for place, role in roles.items() if role == "attention"]
    wanted = (latency[rest, 3] - latency[rest, 1]).sum()
    wanted += (latency[attention, 2] - latency[attention, 0]).sum()
    assert step.prompts.modules_us == pytest.approx(wanted)
