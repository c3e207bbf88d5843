"""Steps of engines' curves that neither the work model nor a source rule explains, as text."""

from collections.abc import Iterator, Sequence

from nearfree.derive.score.engine_steps import TOLERATED, CurveSteps, UnnamedStep


def steps_lines(curves: Sequence[CurveSteps]) -> Iterator[str]:
    """Yield one line per engine curve with its unexplained steps; nothing without curves."""
    if not curves:
        return
    steps = [step for curve in curves for step in curve.steps]
    certain = sum(step.sure for step in steps)
    yield ""
    yield (
        f"unexplained steps of engines' curves: {len(steps)} N at which T(N)/T(1) rises by "
        f"{TOLERATED:g} more than the work model's and no source rule names a step; {certain} of "
        "them at the lower end of the interval, too"
    )
    for curve in curves:
        seen = " (in sample)" if curve.in_sample else ""
        yield f"  {curve.curve}{seen}: {', '.join(map(_step, curve.steps)) or 'none'}"


def _step(step: UnnamedStep) -> str:
    perhaps = "" if step.sure else " (within its interval)"
    return f"N = {step.n} from {step.since} by {step.excess:.2f}{perhaps}"
