"""Where many curves T(N) leave a tolerance at once; `core.boundary` reads N_max off one curve.

Source: paper, sec. 2.2, N_max = max{N : T(N) <= (1 + epsilon) T(baseline)}.
"""

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


def last_pass(passes: Flags, baseline: Places | None = None) -> Places:
    """Return the place of N_max in each curve's grid, [rows]: its last point within the tolerance.

    Parameters
    ----------
    passes
        Which points are within the tolerance, [rows, grid]; none that is not a curve's own.
    baseline
        The place of each baseline, [rows], which always passes; the first one if None.
    """
    first = np.zeros(len(passes), dtype=np.int64) if baseline is None else baseline
    places = np.arange(passes.shape[1])[None, :]
    later = passes & (places > first[:, None])
    return np.asarray(np.max(np.where(later, places, first[:, None]), axis=1))


def first_exit(passes: Flags, counts: Flags) -> Places:
    """Return the place before each curve's first violation, [rows]; its last without one.

    Parameters
    ----------
    passes
        Which points are within the tolerance, [rows, grid]; the first is the baseline.
    counts
        Which points are a curve's own, [rows, grid]: the first ones.
    """
    places = np.arange(passes.shape[1])[None, :]
    violates = counts & ~passes & (places > 0)
    ends = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.where(violates, places, ends).min(axis=1) - 1)
