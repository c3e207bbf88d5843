"""N_max of many curves at once agrees with that of each curve alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.boundary import Ratio, boundary
from nearfree.derive.truth.exits import first_exit, last_pass

curves = st.lists(st.lists(st.floats(0.5, 2.0), max_size=9), min_size=1, max_size=6)


@given(curves, st.floats(0.01, 0.9))
def test_many_curves_are_read_as_each_alone(drawn: list[list[float]], epsilon: float) -> None:
    """The last pass and the first exit are those of the scalar form."""
    counts = np.zeros((len(drawn), 10), dtype=bool)
    ratio = np.full(counts.shape, np.inf)
    for row, values in enumerate(drawn):
        counts[row, : len(values) + 1] = True
        ratio[row, : len(values) + 1] = [1.0, *values]
    passes = ratio <= 1.0 + epsilon
    last, first = last_pass(passes), first_exit(passes, counts)
    for row, values in enumerate(drawn):
        points = [Ratio(n, value, value, value) for n, value in enumerate([1.0, *values], 1)]
        alone = boundary(points, epsilon, 1)
        assert (last[row] + 1, first[row] + 1) == (alone.last_pass, alone.first_exit)


@given(st.integers(0, 4), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_baseline_passes_and_counts_from_there(baseline: int, passes: list[bool]) -> None:
    """What lies before a baseline does not count, and the baseline itself always passes."""
    found = last_pass(np.array([passes]), np.array([baseline]))
    later = [place for place in range(baseline + 1, 5) if passes[place]]
    assert found.tolist() == [max([baseline, *later])]
