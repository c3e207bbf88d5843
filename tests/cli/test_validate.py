"""`nearfree validate`: its text and its JSON, how it groups, and its refusals."""

import re
import shutil
from pathlib import Path

import pytest
from derive.curves import IdleCompute
from derive.questions import LOG
from derive.truth.test_datasets import HEADER
from msgspec import json
from nearfree.cli import scoring, validate
from nearfree.derive.reference.left_out import LEFT_OUT
from nearfree.derive.score.evaluation import EVERY
from nearfree.derive.score.scores import GROUP_KEYS, MORE_KEYS
from nearfree.derive.truth.truth import Truth
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.log.names import Layout

from cli.conftest import Call
from workflow import ROOT

KEYS = {
    "predictor", "platform", "module", "backend", "backend_version", "in_sample", "settings",
    "answered", "hits", "within_1_31", "within_2", "median_abs_log2", "t_ratio_error",
    "interval_coverage", "interval_width",
}  # fmt: skip


@pytest.fixture(autouse=True)
def law(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one law answer, which needs neither rules nor constants."""
    monkeypatch.setattr(scoring, "make_answerer", lambda *_: IdleCompute())


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


def test_tolerances_are_pooled_or_grouped(call: Call) -> None:
    """Over all tolerances there are 270 boundaries, pooled unless grouped by tolerance."""
    (pooled,) = scored(call, "--predictor", "principle", "--epsilon", "all", "--by", "predictor")
    assert (pooled["settings"], pooled["epsilon"], pooled["module"]) == (270, None, None)
    by_tolerance = scored(call, "--predictor", "principle", "--epsilon", "all", "--by", "epsilon")
    assert [(g["epsilon"], g["settings"]) for g in by_tolerance] == [
        (epsilon, 54) for epsilon in (0.05, 0.1, 0.15, 0.2, 0.3)
    ]
    assert sum(int(str(g["hits"])) for g in by_tolerance) == pooled["hits"]
    two_tolerances = scored(
        call, "--predictor", "principle", "--epsilon", "0.1", "--epsilon", "0.2"
    )
    assert len(two_tolerances) == 6


def test_the_table_has_what_was_scored(call: Call) -> None:
    """The text names data, tolerance, truth, constants and coverage before any number."""
    code, out, err = call("validate", "--module", "dense_ffn", "--by", "predictor")
    assert (code, err) == (0, "")
    head, rows, _ = out.split("\n\n")
    for text in ("published", "0.2", "last pass", "count as misses", "work_model: none fitted",
                 "coverage    24 of 24 answered; 0 boundaries undecided"):  # fmt: skip
        assert text in head
    heading, *lines = rows.split("\n")
    assert heading.split()[:4] == ["predictor", "settings", "answered", "refused"]
    assert [line.split()[:6] for line in lines] == [
        [name, "6", "6", "0", "0", "6"] for name in EVERY[:4]
    ]
    assert len({len(re.match(r".*?\s{2,}\d", line)[0]) for line in lines}) == 1  # type: ignore[index]


def test_measured_tables_are_scored(call: Call) -> None:
    """Measured tables of the results folder are scored, by a law that needs platform facts."""
    groups = scored(call, "--dataset", "measured", "--by", "predictor,platform")
    assert [(g["predictor"], g["platform"], g["settings"]) for g in groups] == [
        (name, "cpu", 2) for name in EVERY[:4]
    ]
    assert all(g["hits_first_exit"] is not None for g in groups)
    assert [g["t_ratio_error"] is None for g in groups] == [True, True, True, False]


def test_filters_are_in_the_head(call: Call) -> None:
    """Filters narrow what is scored, and are in the text's head."""
    argv = ("--module", "moe_ffn", "--routing", "skewed", "--backend", "vllm_0_9_1")
    (group,) = scored(call, *argv, "--predictor", "principle", "--by", "predictor")
    assert group["settings"] == 8
    _, out, _ = call("validate", *argv)
    assert "chosen      module moe_ffn; backend vllm_0_9_1; routing skewed" in out
    assert "seen        no constants are in the log" in out


@pytest.fixture
def constants(project: Path) -> Layout:
    """Put the constants of this repository into the project's log."""
    stream = Path("events", "public", "constants")
    shutil.copytree(LOG.root / stream, project / "results" / stream)
    return LOG


@pytest.mark.usefixtures("constants")
def test_the_head_names_the_calibration_set(call: Call) -> None:
    """The head names the calibration set and the data of chosen forms; `--tried` lists them."""
    _, text, _ = call("validate", "--module", "dense_ffn")
    _, text_with_tried, _ = call("validate", "--module", "dense_ffn", "--tried")
    for out in (text, text_with_tried):
        assert "seen        constants: a100, h100 alone; forms: chosen on A100, H100" in out
        assert "out of sample for constants, not for forms" in out
        for name, event in recorded_constants(LOG, collectives=False).items():
            forms = event.data.tried
            assert f"tried       {name}: {len(forms)} forms" in out
            assert all((form in out) == (out == text_with_tried) for form in forms)


@pytest.fixture
def file(project: Path) -> str:
    """Write curves of products on three platforms, which leave the tolerance at other N."""
    rows = [
        f"{platform},gemm,vllm,0.9.0,bfloat16,1,,8192,{width},,,,,,,,,{n},{us}"
        for platform in ("a100", "h100", "h200")
        for width in (8192, 16384)
        for n, us in ((1, 90), (2, 120), (64, 125), (256, 170), (1024, 500))
    ]
    (project / "mine.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return "mine.csv"


@pytest.mark.usefixtures("constants")
def test_unseen_and_least_n_narrow_what_is_scored(call: Call, file: str) -> None:
    """`--unseen` keeps platforms that no constant was fitted on; `--least-n` moves the baseline."""
    options = ("--predictor", "idle_compute", "--by", "platform")
    groups = scored(call, "--curves", file, *options)
    assert [(g["platform"], g["settings"]) for g in groups] == [
        ("a100", 2), ("h100", 2), ("h200", 2)
    ]  # fmt: skip
    unseen = scored(call, "--curves", file, "--unseen", *options)
    assert [g["platform"] for g in unseen] == ["h200"]
    _, out, _ = call("validate", "--curves", file, "--unseen", "--least-n", "2", *options)
    assert "excluded    4 curves: constants were calibrated on its platform" in out
    assert "mine.csv, N of 2 or more" in out
    assert "chosen      platforms that constants were not calibrated on; N of 2 or more" in out
    assert scored(call, "--curves", file, "--least-n", "2", *options) != groups
    code, _, err = call("validate", "--curves", file, "--unseen", "--platform", "a100")
    assert code == 2
    assert "no platform that no constant was calibrated on" in err


def test_each_platform_is_scored_by_constants_of_the_others(call: Call, file: str) -> None:
    """A platform of a file is scored with constants of the others in it."""
    groups = scored(call, "--curves", file, "--leave-one-out", "--by", "predictor,platform",
                    "--predictor", "idle_compute", "--offline")  # fmt: skip
    left_out = [g for g in groups if g["predictor"] == LEFT_OUT]
    assert [(g["platform"], g["answered"], g["in_sample"]) for g in left_out] == [
        (name, 2, None) for name in ("a100", "h100", "h200")
    ]


def test_a_platform_may_be_named_by_an_alias(call: Call) -> None:
    """A platform's other names mean the same platform."""
    by_alias = scored(call, "--platform", "nvidia_h20", "--predictor", "principle")
    assert by_alias == scored(call, "--platform", "h20", "--predictor", "principle")


def test_stored_formats_narrow_and_group(call: Call, tmp_path: Path) -> None:
    """Weights in the element type have its name, those in another format that one's."""
    head = "h20,gemm,vllm,0.24.0,bfloat16,1,,4096,8192,,,,,,,,cublas"
    points = ((1, 50.0), (64, 51.0), (256, 70.0), (1024, 200.0))
    rows = [f"{head},{n},{us},{weights}" for weights in ("", "int4") for n, us in points]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([f"{HEADER.strip()},weights", *rows]) + "\n")
    options = ("--curves", str(path), "--predictor", "principle", "--by", "weights")
    for name, stored in (("bfloat16", None), ("int4", "int4")):
        (group,) = scored(call, *options, "--weights", name)
        assert (group["weights"], group["settings"]) == (stored, 1)
    assert len(scored(call, *options)) == 2


def test_power_laws_are_scored_from_awake_experts_or_from_one(call: Call, tmp_path: Path) -> None:
    """A routing without an exponent means all; `--from-one` adds the baseline N = 1."""
    times = ((1, 100.0), (2, 190.0), (16, 600.0), (32, 610.0), (64, 620.0), (256, 900.0))
    rows = [
        f"h100,moe_ffn,sglang,0.5.14,bfloat16,1,,4096,1024,true,64,8,{routing},,,,,{n},{us}"
        for routing in ("power_law:1.2", "power_law:1.01", "balanced")
        for n, us in times
    ]
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n")
    options = ("--curves", str(path), "--routing", "power_law", "--by", "predictor,routing")
    awake = scored(call, *options, "--predictor", "always_baseline")
    assert [(group["routing"], group["hits"]) for group in awake] == [
        ("power_law:1.01", 0), ("power_law:1.2", 0)
    ]  # fmt: skip
    code, out, _ = call("validate", *options, "--from-one")
    assert code == 0
    assert "mine.csv, ratios from the smallest N" in out
    from_one = scored(call, *options, "--from-one")
    constant = [group for group in from_one if group["predictor"] == "always_baseline"]
    assert [(group["settings"], group["hits"]) for group in constant] == [(1, 1), (1, 1)]
    (steep,) = scored(call, *options[:2], "--routing", "power_law:1.2", "--predictor", "principle")
    assert steep["settings"] == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--weights int4", "no boundary of the weights 'int4'. Choose from bfloat16"),
        ("--kv-dtype int8", "no boundary of the kv_dtype 'int8'. Choose from bfloat16"),
        ("--platform mars", "no boundary of the platform 'mars'. Choose from h20"),
        ("--module gemm", "no boundary of the module 'gemm'. Choose from attention, dense_ffn"),
        ("--by predictor,colour", "'colour' is not a column to group by: choose from predictor,"),
        ("--by ", "--by is empty"),
        ("--by colour", "; with --dataset whole from model, platform, precision, engine"),
        ("--by predictor,regime", "these scores have no regime to group by. Leave it out of --by"),
        ("--by operation,gpus", "these scores have no operation and no gpus to group by"),
        ("--predictor oracle", "invalid choice: 'oracle'"),
        ("--dataset mine", "invalid choice: 'mine'"),
        ("--epsilon 0", "'0' is not between 0 and 1"),
        ("--epsilon nan", "'nan' is not between 0 and 1"),
        ("--epsilon small", "'small' is not a number"),
        ("--epsilon 0.25", "no boundary at the tolerance 0.25: the paper prints 0.05"),
        ("--minimum-mb -1", "-1 is not a size"),
        ("--predictor twin_version", "twin_version needs a second version of a curve"),
        ("--dataset aiconfigurator", "Run `nearfree import aiconfigurator`"),
        ("--curves nowhere.csv", "nowhere.csv"),
        ("--backend triton", "no boundary of the backend 'triton'. Choose from flash_attn_2"),
        ("--dtype float8", "no boundary of the dtype 'float8'. Choose from bfloat16"),
        ("--routing power_law", "no boundary of the routing 'power_law'. Choose from balanced"),
        ("--routing odd", "no boundary of the routing 'odd'. Choose from balanced"),
        ("--from-one", "Use --from-one with curves"),
        ("--module dense_ffn --routing skewed", "the routing 'skewed'. Choose from none"),
        ("--least-n 0", "0 is not between 1 and 999999"),
        ("--least-n 2", "Use --least-n with curves"),
        ("--minimum-mb 64", "Use --minimum-mb with curves"),
        ("--unseen", "no constants are in the log. Run `nearfree calibrate`"),
        ("--own", "Run `nearfree calibrate --own PLATFORM"),
        ("--leave-one-out", "Run `nearfree import aiconfigurator`"),
        ("--dataset measured --curves nowhere.csv", "not allowed with argument"),
    ],
)
def test_mistakes(call: Call, argv: str, message: str) -> None:
    """Each mistake ends with exit code 2, prints no score, and names the thing and a remedy."""
    code, out, err = call("validate", *argv.split(" "))
    assert (code, out) == (2, "")
    assert message in err


def test_the_commands_choices_are_all_that_can_be_scored() -> None:
    """The choices on the command line are all that can be scored and grouped by."""
    assert validate.SCORED == EVERY
    assert list(validate.BY) == [*GROUP_KEYS, *MORE_KEYS]


def test_data_without_a_boundary_are_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data without any boundary end in a message, not in an empty table."""
    from derive.curves import make_truth
    from nearfree.derive.truth import datasets

    empty: Truth = make_truth(({}, {1: 1.0}))
    monkeypatch.setattr(datasets, "load_published", lambda *_: ("nothing", empty))
    code, out, err = call("validate")
    assert (code, out) == (2, "")
    assert "nothing holds no curve with a boundary" in err
    assert "ceil(E / (b k))" in err


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
def test_published_steps_of_whole_models(call: Call) -> None:
    """A row for all and one a group, with the keys of other scores, the error of T, and reasons.

    The numbers in documents are those of the command.
    """
    code, out, err = call("validate", "--dataset", "whole", "--offline", "--format", "json")
    assert (code, err) == (0, "")
    total, *groups = json.decode(out)
    assert KEYS - {"backend", "backend_version", "in_sample", "hits"} <= total.keys()
    assert total["settings"] == 688 == total["answered"] + sum(total["not_answered"].values())
    assert total["answered"] / total["settings"] > 0.65
    assert sum(group["settings"] for group in groups) == 688
    assert {group["several"] for group in groups} == {True, False}
    assert total["t_error_median"] < 0.15
    assert total["t_within_20"] > 0.60
    assert total["t_ratio_error"] < 0.12
    assert 0.75 <= total["interval_coverage"] <= 0.88
    documents = ("README.md", "docs/guide.md", "docs/scores.md")
    readme, guide, scores = (" ".join((ROOT / name).read_text().split()) for name in documents)
    error = f"off by {100 * total['t_error_median']:.1f} % in the median"
    answered, settings = total["answered"], total["settings"]
    readme_text = f"Of {settings} published steps of whole models {answered} are answered"
    share_within_20 = f"{100 * total['t_within_20']:.0f} % of them are within 20 %"
    assert f"{readme_text}: T is {error}, and {share_within_20}" in readme
    assert readme_text in guide
    assert f"their T is {error}" in guide
    numbers = (
        f"{total['t_error_median']:.3f}", f"{total['t_within_20']:.3f}",
        f"{total['interval_coverage']:.2f}", f"{total['t_ratio_error']:.3f}",
    )  # fmt: skip
    share = f"{answered} ({answered / settings:.0%})".replace("%", " %")
    cells = (f"all, {settings}", share, *(number.lstrip("0") for number in numbers))
    assert f"| {' | '.join(cells)} |" in scores


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
def test_steps_of_a_file_and_a_folder(call: Call, tmp_path: Path) -> None:
    """A user's rows are answered by the constants on record, with the user's model files."""
    models = tmp_path / "models" / "Mine"
    models.mkdir(parents=True)
    config = Path("config/whole/models/qwen3_32b.json").read_text()
    (models / "config.json").write_text(config)
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "model,gpu,engine,batch,t_us,tp,precision\n"
        "Mine,H100,vllm,8,8000,8,bf16\nMine,H100,none,8,8000,8,bf16\n"
    )
    argv = ("validate", "--dataset", "whole", "--offline", "--file", str(rows))
    code, out, err = call(*argv, "--models", str(models.parent))
    assert (code, err) == (0, "")
    assert "rows.csv: 2 rows, 1 of them (50%) answered" in out
    assert "1  no kernels of none on a GPU are known" in out
    narrowed = call(*argv, "--models", str(models.parent), "--platform", "h100_sxm")
    assert narrowed == (0, out, "")
    code, out, err = call(*argv, "--models", str(tmp_path))
    assert (code, out) == (2, "")
    assert "none of 2 rows is answered" in err


@pytest.mark.parametrize(("argv", "message"), [
    (["--file", "x.csv"], "apply to steps of whole models"),
    (["--by", "engine"], "draft,engine,model,precision,several apply to steps of whole models"),
    (["--dataset", "whole", "--epsilon", "0.1"], "--epsilon has no effect on steps"),
    (["--dataset", "whole", "--by", "routing"], "--by routing has no effect on steps"),
    (["--dataset", "whole", "--dtype", "float8", "--least-n", "2"],
     "--dtype, --least-n has no effect on steps"),
    (["--dataset", "whole", "--platform", "t4"], "no row is of t4"),
    (["--curves", "x.csv", "--module", "collective", "--regime", "R1", "--minimum-mb", "0"],
     "--regime, --minimum-mb has no effect on collectives"),
    (["--dataset", "whole", "--file", "none.csv"], "none.csv: No such file"),
])  # fmt: skip
@pytest.mark.usefixtures("recorded")
def test_mistakes_about_steps(call: Call, argv: list[str], message: str) -> None:
    """Options that exclude each other are one message."""
    code, out, err = call("validate", "--offline", *argv)
    assert (code, out) == (2, "")
    assert message in err
