"""The text of a take of an engine's forwards."""

import pytest
from derive.tables.logs import make_take, make_visits
from engine_takes import SETTING, loaded
from nearfree.log.curves import curves
from nearfree.show.text.engine import engine_text


def test_an_n_without_a_clean_sample_says_so() -> None:
    """An N without clean samples has a line without numbers."""
    clean = make_visits(SETTING, {1: 900.0, 2: 1800.0})
    disturbed = make_visits(SETTING, {4: 3600.0}, dirty=(True, True))
    take = make_take(loaded(), *clean, *disturbed)
    lines = [line.split() for line in engine_text(take, curves([take]), 0.2)]
    assert [line[:3] for line in lines if line and line[0] in {"1", "2", "4"}] == [
        ["1", "0.91", "1.00"],
        ["2", "1.82", "2.00"],
        ["4", "-", "-"],
    ]
    assert any("no clean sample" in " ".join(line) for line in lines)


@pytest.mark.parametrize(
    ("handover_ns", "sentence"),
    [
        ((50.0, 60.0), None),
        (None, None),
        (
            (50.0, 410.0),
            "took 50 ns from one to another and back, but up to 410 in 8 of 32 forwards",
        ),
    ],
    ids=["close", "not watched", "apart"],
)
def test_forwards_while_cpus_were_apart_are_told(
    handover_ns: tuple[float, float] | None, sentence: str | None
) -> None:
    """The text says how far apart the CPUs were, and in how many forwards."""
    visits = [
        *make_visits(SETTING, {1: 900.0}, handover_ns=(50.0, None) if handover_ns else None),
        *make_visits(SETTING, {2: 990.0}, handover_ns=handover_ns),
    ]
    take = make_take(loaded(), *visits)
    told = [line for line in engine_text(take, curves([take]), 0.2) if "moved its CPUs" in line]
    assert len(told) == (sentence is not None)
    assert all(str(sentence) in line for line in told)


def test_a_boundary_at_the_end_of_the_grid_is_a_lower_end() -> None:
    """If no N after N_max was measured, N_max is "at least"."""
    for last, sentence in ((1800.0, "N_max = 1 at 20%"), (990.0, "N_max ≥ 2 at 20%")):
        take = make_take(loaded(), *make_visits(SETTING, {1: 900.0, 2: last}))
        assert sentence in "\n".join(engine_text(take, curves([take]), 0.2))
