"""`nearfree validate`: its text and its JSON, how it groups, and what it refuses."""

import re
from pathlib import Path

import pytest
from msgspec import json
from nearfree.cli import validate_
from nearfree.theory.evaluation import EVERY
from nearfree.theory.scores import GROUP_KEYS, MORE_KEYS
from nearfree.theory.truth import Truth
from theory.curves import IdleCompute

from cli.conftest import Call

KEYS = {
    "predictor", "platform", "module", "backend", "backend_version", "in_sample", "settings",
    "answered", "hits", "within_1_31", "within_2", "median_abs_log2", "t_ratio_error",
    "interval_coverage", "interval_width",
}  # fmt: skip


@pytest.fixture(autouse=True)
def law(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one law answer, which needs neither rules nor constants."""
    monkeypatch.setattr(validate_, "answering", lambda *_: IdleCompute())


def scored(call: Call, *argv: str) -> list[dict[str, object]]:
    """Return the groups that the command prints as JSON."""
    code, out, err = call("validate", *argv, "--format", "json")
    assert (code, err) == (0, "")
    groups: list[dict[str, object]] = json.decode(out)
    return groups


def test_the_paper_s_settings_as_json(call: Call) -> None:
    """By default it is the paper's 54 settings at the config's tolerance, by module."""
    groups = scored(call, "--predictor", "idle_compute")
    assert [(g["module"], g["settings"], g["hits"], g["epsilon"]) for g in groups] == [
        ("attention", 16, 0, 0.2),
        ("dense_ffn", 6, 6, 0.2),
        ("moe_ffn", 32, 0, 0.2),
    ]
    assert all(set(group) >= KEYS for group in groups)


def test_tolerances_are_pooled_or_apart(call: Call) -> None:
    """Over all tolerances there are 270 boundaries, pooled unless grouped by tolerance."""
    (pooled,) = scored(call, "--predictor", "principle", "--epsilon", "all", "--by", "predictor")
    assert (pooled["settings"], pooled["epsilon"], pooled["module"]) == (270, None, None)
    apart = scored(call, "--predictor", "principle", "--epsilon", "all", "--by", "epsilon")
    assert [(g["epsilon"], g["settings"]) for g in apart] == [
        (epsilon, 54) for epsilon in (0.05, 0.1, 0.15, 0.2, 0.3)
    ]
    assert sum(int(str(g["hits"])) for g in apart) == pooled["hits"]
    two = scored(call, "--predictor", "principle", "--epsilon", "0.1", "--epsilon", "0.2")
    assert len(two) == 6


def test_the_table_says_what_was_scored(call: Call) -> None:
    """The text names data, tolerance, truth, constants and coverage before any number."""
    code, out, err = call("validate", "--module", "dense_ffn", "--by", "predictor")
    assert (code, err) == (0, "")
    head, rows, _ = out.split("\n\n")
    for said in ("published", "0.2", "last pass", "count as misses", "work_model: none fitted",
                 "coverage    24 of 24 answered; 0 boundaries undecided"):  # fmt: skip
        assert said in head
    heading, *lines = rows.split("\n")
    assert heading.split()[:4] == ["predictor", "settings", "answered", "refused"]
    assert [line.split()[:6] for line in lines] == [
        [name, "6", "6", "0", "0", "6"] for name in EVERY[:4]
    ]
    assert len({len(re.match(r".*?\s{2,}\d", line)[0]) for line in lines}) == 1  # type: ignore[index]


def test_measured_tables_are_scored(call: Call) -> None:
    """The tables of this results folder, whose platform's facts a law asks for."""
    groups = scored(call, "--dataset", "measured", "--by", "predictor,platform")
    assert [(g["predictor"], g["platform"], g["settings"]) for g in groups] == [
        (name, "cpu", 2) for name in EVERY[:4]
    ]
    assert all(g["hits_first_exit"] is not None for g in groups)
    assert [g["t_ratio_error"] is None for g in groups] == [True, True, True, False]


def test_a_platform_may_be_named_by_an_alias(call: Call) -> None:
    """A platform's other names mean it, too."""
    named = scored(call, "--platform", "nvidia_h20", "--predictor", "principle")
    assert named == scored(call, "--platform", "h20", "--predictor", "principle")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--platform mars", "no boundary of the platform 'mars'. Choose from h20"),
        ("--module gemm", "no boundary of the module 'gemm'. Choose from attention, dense_ffn"),
        ("--by predictor,colour", "'colour' is nothing to group by: choose from predictor,"),
        ("--by ", "'' is nothing to group by"),
        ("--predictor oracle", "invalid choice: 'oracle'"),
        ("--dataset mine", "invalid choice: 'mine'"),
        ("--epsilon 0", "0 is not between 0 and 1"),
        ("--epsilon nan", "nan is not between 0 and 1"),
        ("--epsilon small", "'small' is no number"),
        ("--epsilon 0.25", "no boundary at the tolerance 0.25: the paper prints 0.05"),
        ("--minimum-mb -1", "-1 is no size"),
        ("--predictor twin_version", "twin_version needs a second version of a curve"),
        ("--dataset aiconfigurator", "Run `nearfree import aiconfigurator`"),
        ("--curves nowhere.csv", "nowhere.csv"),
        ("--dataset measured --curves nowhere.csv", "not allowed with argument"),
    ],
)
def test_mistakes(call: Call, argv: str, said: str) -> None:
    """Each mistake ends with exit code 2, prints no score, and names the thing and a remedy."""
    code, out, err = call("validate", *argv.split(" "))
    assert (code, out) == (2, "")
    assert said in err


def test_the_command_s_lists_are_those_of_the_theory() -> None:
    """What can be asked for on the command line is what can be scored and grouped by."""
    assert validate_.PREDICTORS == EVERY
    assert list(validate_.BY) == [*GROUP_KEYS, *MORE_KEYS]


def test_nothing_left_to_score(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data without any boundary end in a message, not in an empty table."""
    from nearfree.theory import datasets
    from theory.curves import make_truth

    empty: Truth = make_truth(({}, {1: 1.0}))
    monkeypatch.setattr(datasets, "load_published", lambda *_: ("nothing", empty))
    code, out, err = call("validate")
    assert (code, out) == (2, "")
    assert "nothing holds no curve with a boundary" in err
