"""Steps of engines' curves that neither the work model nor a rule has, as text."""

from collections.abc import Iterator, Sequence

from nearfree.derive.score.engine_steps import TOLERATED, CurveSteps, UnnamedStep


def steps_lines(found: Sequence[CurveSteps]) -> Iterator[str]:
    """Yield a line a curve of an engine; none without such curves."""
    if not found:
        return
    every = [step for each in found for step in each.steps]
    sure = sum(step.sure for step in every)
    yield ""
    yield (
        f"steps of engines' curves: N to which T(N)/T(1) rises by {TOLERATED:g} more than the work "
        f"model's, where no rule names one: {len(every)}, of which {sure} "
        "at the lower end of their intervals, too"
    )
    for each in found:
        seen = " (in sample)" if each.in_sample else ""
        yield f"  {each.curve}{seen}: {', '.join(map(_step, each.steps)) or 'none'}"


def _step(step: UnnamedStep) -> str:
    perhaps = "" if step.sure else " (its interval leaves it open)"
    return f"N = {step.n} from {step.since} by {step.excess:.2f}{perhaps}"
