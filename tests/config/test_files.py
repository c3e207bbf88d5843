"""The files under config/: those that are shipped load, and a mistake gives one message."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from derive.tables.logs import copy_config
from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.core.plan import plan_digest
from nearfree.errors import ConfigError

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the shipped config, without requests for further takes."""
    return copy_config(tmp_path / "config")


def read_all(folder: Path) -> None:
    """Read every file of a config."""
    config = Config(folder)
    assert config.site and config.platforms and config.environments and config.studies  # noqa: PT018
    assert config.takes is not None
    assert config.releases is not None


def put(*path: str, value: object) -> Change:
    """Return a change that sets one field."""

    def change(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def drop(*path: str) -> Change:
    """Return a change that removes one field."""

    def change(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


def refusal(folder: Path) -> str:
    """Return the message that a config is refused with, after checking its form."""
    with pytest.raises(ConfigError) as error:
        read_all(folder)
    text = str(error.value).replace(str(folder), "config")
    assert error.value.remedy
    assert "\n" not in text
    assert len(text) < 1500
    return text


STUDY = "dense_ffn"
MISTAKES: list[tuple[str, Change, str]] = [
    # site.yaml
    ("config.yaml", put("here", value=["mars"]), "here names the unknown platform 'mars'"),
    ("config.yaml", put("here", value=[]), "here"),
    ("config.yaml", put("here", value="cpu"), "here"),
    ("config.yaml", put("here", value=["../cpu"]), "here"),
    ("config.yaml", drop("here"), "here"),
    ("config.yaml", put("epsilon", value=0.25), "epsilon 0.25 is not one of the tolerances"),
    ("config.yaml", put("epsilon", value=0), "epsilon"),
    ("config.yaml", put("epsilon", value="small"), "epsilon"),
    ("config.yaml", put("tolerances", value=[]), "tolerances"),
    ("config.yaml", put("tolerances", value=[0.2, 1.5]), "tolerances"),
    ("config.yaml", put("tolerances", value=[0.2, float("nan")]), "tolerances"),
    ("config.yaml", put("tolerances", value=[0.2, 0.1, 0.2]), "tolerances"),
    ("config.yaml", put("heer", value=["cpu"]), "heer"),
    ("config.yaml", put("sets", value=[]), "sets"),
    ("config.yaml", put("sets", value=["A set"]), "sets"),
    ("config.yaml", put("sets", value="default"), "sets"),
    (
        "config.yaml",
        put("sets", value=["defualt", "paper"]),
        "sets names the unknown set 'defualt'",
    ),
    ("config.yaml", put("here", value=["cpu", "cpu"]), "here ['cpu', 'cpu'] name one twice"),
    ("config.yaml", put("python", value={"vlm": "a"}), "the unknown environment 'vlm'"),
    ("config.yaml", put("untested", value="sometimes"), "untested"),
    ("config.yaml", put("imports", value=["aiconfigurator"]), "imports"),
    ("config.yaml", put("imports", value=["../x==1.0"]), "imports"),
    ("config.yaml", put("imports", value=["aiconfigurator==0.12.0"] * 2), "name one twice"),
    # backends
    ("backends.yaml", put("torch", value={}), "environment"),
    ("backends.yaml", put("torch", value={"environment": "a b"}), "environment"),
    ("backends.yaml", put("Torch", value={"environment": "cpu"}), "Torch"),
    ("backends.yaml", put("jax", value={"environment": "cpu"}), "the unknown backend 'jax'"),
    # studies
    ("studies.yaml", put(STUDY, "platforms", value=["mars"]), "dense_ffn.platforms names"),
    ("studies.yaml", put(STUDY, "backend", value="jax"), "dense_ffn.backend names"),
    ("studies.yaml", put(STUDY, "batch", value=[1, -2]), "batch"),
    ("studies.yaml", put(STUDY, "batch", value=[]), "batch"),
    ("studies.yaml", put(STUDY, "batch", value=[1, 2, 1]), "dense_ffn: batch [1, 2, 1] names"),
    ("studies.yaml", put(STUDY, "set", value="A set"), "set"),
    ("studies.yaml", put(STUDY, "tokens_max", value=0), "tokens_max"),
    ("studies.yaml", put(STUDY, "edges", value=[0]), "edges"),
    ("studies.yaml", put("moe_padded", "top_k", value=[17]), "moe_padded: top_k 17 is larger"),
    ("studies.yaml", put("moe_padded", "routing", value=[]), "moe_padded.routing"),
    ("studies.yaml", put("attention", "shape", "heads", value=9), "attention: heads 9 is no"),
    ("studies.yaml", put("attention", "routing", value=["skewed"]), "routing"),
    ("studies.yaml", put(STUDY, "positions", value=[2, 4]), "lacks its baseline"),
    ("studies.yaml", put(STUDY, "positions", value=[1, 4, 2]), "not strictly rising"),
    ("studies.yaml", put(STUDY, "positions", value=[1, 2.5]), "positions"),
    ("studies.yaml", put(STUDY, "baseline", value=100), "lacks its baseline"),
    ("studies.yaml", put(STUDY, "shape", "d_model", value="wide"), "d_model"),
    ("studies.yaml", drop(STUDY, "shape", "d_ff"), "d_ff"),
    ("studies.yaml", put(STUDY, "protocol", "rounds", value=2), "rounds"),
    ("studies.yaml", put(STUDY, "protocol", "name", value="sweep"), "protocol"),
    ("studies.yaml", put(STUDY, "dtype", value="int3"), "dtype"),
    ("studies.yaml", put(STUDY, "module", value="conv"), "module"),
    ("studies.yaml", drop(STUDY, "protocol"), "protocol"),
    ("studies.yaml", put(STUDY, "colour", value="red"), "colour"),
    ("studies.yaml", put("Dense FFN", value={}), "Dense FFN"),
    # platforms
    ("platforms.yaml", drop("h20", "sources", "bandwidth_gb_s"), "h20.bandwidth_gb_s"),
    ("platforms.yaml", put("h20", "aliases", value=["a800"]), "share the name a800"),
    ("platforms.yaml", put("h20", "kind", value="tpu"), "h20"),
    ("platforms.yaml", put("h20", "bandwidth_gb_s", value=-1), "h20.bandwidth_gb_s"),
    ("platforms.yaml", put("h20", "bandwidth_gb_s", value=float("inf")), "bandwidth_gb_s"),
    ("platforms.yaml", put("h20", "peak_tflops", value={"bfloat16": "148"}), "peak_tflops"),
    ("platforms.yaml", put("h20", "colour", value="green"), "colour"),
    ("platforms.yaml", put("h20", "sm_count", value=0), "h20.sm_count"),
    ("platforms.yaml", put("h20", "node_gpus", value=-8), "h20.node_gpus"),
    ("platforms.yaml", put("h20", "peak_tflops", "fp8", value=296), "peak_tflops.fp8"),
    ("platforms.yaml", put("h20", "unknown", value=["peak_tflops.fp8"]), "peak_tflops.fp8"),
    ("platforms.yaml", put("h20", "unknown", value=["l2"]), "the unknown fact 'l2'"),
    ("platforms.yaml", put("schedules", value={"kind": "cuda"}), "'schedules' is taken"),
    ("platforms.yaml", put("imported", value={"kind": "cuda"}), "'imported' is taken"),
    ("platforms.yaml", put("H 20", value={"kind": "cuda"}), "H 20"),
    # takes
    ("takes.yaml", put("cpu", value={"dense_ffn": 0}), "cpu.dense_ffn"),
    ("takes.yaml", put("cpu", value=2), "cpu"),
]


def case_id(case: object) -> str | None:
    """Name a mistake by what its message says."""
    return case if isinstance(case, str) else "with"


def test_the_shipped_config_loads(folder: Path) -> None:
    """The config of the repository has no mistake."""
    read_all(folder)
    assert Config(folder).site.epsilon in Config(folder).site.tolerances
    plan = Plans(Config(folder), "cpu").measure("dense_ffn")
    assert [sweep.setting.batch for sweep in plan.sweeps] == [1, 4]
    assert plan.environment == "cpu"


@pytest.mark.parametrize(("file", "change", "field"), MISTAKES, ids=case_id)
def test_a_mistake_is_named(folder: Path, file: str, change: Change, field: str) -> None:
    """A single mistake gives one message that names the file, the field and a remedy."""
    path = folder / file
    document = yaml.safe_load(path.read_text()) if path.exists() else {}
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    text = refusal(folder)
    assert f"config/{file}" in text
    assert field in text


@pytest.mark.parametrize("name", ["hardware", "retracted"])
def test_a_study_cannot_take_the_name_of_another_stream(folder: Path, name: str) -> None:
    """A study named as a stream that the program uses itself is refused by name."""
    path = folder / "studies.yaml"
    path.write_text(path.read_text().replace("\ndense_ffn:", f"\n{name}:"))
    assert name in refusal(folder)


def test_a_name_with_a_newline_at_its_end_is_refused(folder: Path) -> None:
    """A name with a newline at its end is refused: no folder of the log could be read back."""
    path = folder / "studies.yaml"
    path.write_text(path.read_text().replace("\ndense_ffn:", '\n"dense_ffn\\n":'))
    assert "dense_ffn" in refusal(folder)


@pytest.mark.parametrize(
    ("file", "document"),
    [
        ("config.yaml", {"imports": ["aiconfigurator==0.12.0\n"]}),
        ("config.yaml", {"python": {"cpu\n": "python"}}),
        ("sources.yaml", {"releases": ["vllm==0.20.2\n"]}),
    ],
)
def test_a_reference_with_a_newline_at_its_end_is_refused(
    folder: Path, file: str, document: dict[str, Any]
) -> None:
    """A release or an environment with a newline at its end is refused by its field."""
    path = folder / file
    existing = yaml.safe_load(path.read_text()) if path.exists() else {}
    path.write_text(yaml.safe_dump(existing | document))
    assert f"{file}: {next(iter(document))}" in refusal(folder)


def test_a_mistake_in_platforms_names_the_file_that_has_it(folder: Path) -> None:
    """Whatever folder is read, a fact without its source is refused with that folder's file."""
    path = folder / "platforms.yaml"
    path.write_text(f"{path.read_text()}\nx9:\n  kind: cuda\n  memory_gb: 80\n")
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}: x9.memory_gb has no source"):
        _ = Config(folder).platforms


@pytest.mark.parametrize("name", ["public", "all"])
def test_a_platform_cannot_take_the_name_of_another_scope(folder: Path, name: str) -> None:
    """A platform named as a scope or target that the program uses itself is refused by name."""
    path = folder / "platforms.yaml"
    path.write_text(path.read_text() + f"\n{name}:\n  kind: cuda\n")
    assert name in refusal(folder)


def test_the_first_take_is_the_default(folder: Path) -> None:
    """Without takes.yaml, and for streams that it does not name, the take is the first."""
    assert Config(folder).take("cpu", "dense_ffn") == 1
    (folder / "takes.yaml").write_text("cpu: {dense_ffn: 3}\n")
    assert [Config(folder).take("cpu", name) for name in ("dense_ffn", "hardware")] == [3, 1]


def test_a_cap_on_tokens_cuts_grids_and_keeps_a_point(folder: Path) -> None:
    """No point has more than `tokens_max` tokens, except the smallest N of a large batch."""
    path = folder / "studies.yaml"
    path.write_text(path.read_text().replace("batch: [1, 4]", "batch: [1, 8, 100]", 1))
    sweeps = Config(folder).study("cpu", "dense_ffn").sweeps()
    assert [sweep.positions[-1] for sweep in sweeps] == [64, 8, 1]
    assert sweeps[1].positions == (1, 2, 3, 4, 5, 6, 7, 8)


def test_comments_and_order_do_not_change_a_plan(folder: Path) -> None:
    """A plan depends on a file's values, not on how the file is written."""
    before = plan_digest(Plans(Config(folder), "cpu").measure("dense_ffn"))
    path = folder / "studies.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=True))
    assert plan_digest(Plans(Config(folder), "cpu").measure("dense_ffn")) == before


def test_a_study_of_another_platform_is_refused(folder: Path) -> None:
    """A study of another platform is refused with the list of those of this one."""
    with pytest.raises(ConfigError, match="no study 'dense_ffn' on platform 'h20'"):
        Plans(Config(folder), "h20").measure("dense_ffn")
    with pytest.raises(ConfigError, match="Choose from dense_ffn"):
        Plans(Config(folder), "cpu").measure("moe")


def test_a_study_of_a_set_that_is_not_measured_names_the_set(folder: Path) -> None:
    """A study of this platform, whose set `sets` omits, is refused with the name of the set."""
    path = folder / "studies.yaml"
    studies = yaml.safe_load(path.read_text())
    studies["dense_ffn"]["set"] = "larger"
    path.write_text(yaml.safe_dump(studies))
    with pytest.raises(ConfigError, match="add its set, larger, to `sets` of config"):
        Config(folder).study("cpu", "dense_ffn")
    with pytest.raises(ConfigError, match=r"or add it to .*studies"):
        Config(folder).study("h20", "dense_ffn")


def test_datasheets_of_a_scope(folder: Path) -> None:
    """A platform's tables hold its own datasheet, the public ones all of them."""
    config = Config(folder)
    assert list(config.datasheets("h20")) == ["h20"]
    assert config.datasheets("public") == config.platforms
    assert config.datasheets("mars") == {}


def test_a_probe_of_an_unknown_platform(folder: Path) -> None:
    """An unknown platform has no probe plan, and each known one has one."""
    assert Plans(Config(folder), "cpu").probe().dtypes == ("bfloat16", "float16", "float32")
    with pytest.raises(ConfigError, match="unknown platform 'mars'"):
        Plans(Config(folder), "mars").probe()


def test_the_default_set_has_every_module(folder: Path) -> None:
    """The default set has each module that a CPU runs, and all models.

    No model of the set has an indexer.
    """
    plans = Plans(Config(folder), "cpu").all()
    settings = [sweep.setting for plan in plans.values() for sweep in getattr(plan, "sweeps", ())]
    run = {adapter.module for adapter in ADAPTERS if "cpu" in adapter.devices}
    assert {setting.module for setting in settings} == run - {"indexer"}
    models = {setting.model: setting.moe for setting in settings if setting.module == "model"}
    assert sorted(models.values(), key=str) == [None, *["torch_padded"] * 3]
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("[default, paper]", "[default, thorough]"))
    assert plans.keys() < Plans(Config(folder), "cpu").all().keys()


def test_a_site_of_shipped_sets_reads_no_studies(folder: Path) -> None:
    """A tolerance of a shipped set reads no study; a set of the project's own is looked up."""
    path = folder / "config.yaml"
    (folder / "studies.yaml").write_text("[")
    assert Config(folder).site.epsilon == 0.2
    path.write_text(path.read_text().replace("[default, paper]", "[default, mine]"))
    with pytest.raises(ConfigError, match=r"studies\.yaml is not YAML"):
        _ = Config(folder).site


def test_a_set_of_the_shipped_config_may_be_empty(folder: Path) -> None:
    """A project whose own studies are of other sets may keep the shipped line of sets."""
    shipped = Config(folder).site.sets
    studies = yaml.safe_load((folder / "studies.yaml").read_text())
    (folder / "studies.yaml").write_text(yaml.safe_dump({STUDY: studies[STUDY] | {"set": "mine"}}))
    assert Config(folder).site.sets == shipped
    assert Config(folder).studied("cpu") == []


def test_studies_can_be_left_out(folder: Path) -> None:
    """A study that the site leaves out is not measured, though its set is; others are."""
    names = Config(folder).studied("cpu")
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("without: []", "without: [attention]"))
    assert Config(folder).studied("cpu") == [name for name in names if name != "attention"]
    path.write_text(path.read_text().replace("[attention]", "[mars]"))
    assert "config.yaml: without names the unknown study 'mars'" in refusal(folder)


def test_platforms_are_real_unless_curves_are_named(folder: Path) -> None:
    """With a folder of curve files every platform of the site has one, of its name."""
    assert Config(folder).curves("cpu") is None
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace('curves: ""', "curves: simulated/curves"))
    assert Config(folder).curves("cpu") == Path("simulated/curves/cpu.json")


@pytest.mark.parametrize("name", ["a b", "$(x)", "-x", "a;b", "a\nb", "'a'", "*"])
def test_a_folder_of_curves_is_a_plain_path(folder: Path, name: str) -> None:
    """The folder occurs in a command: a path that a shell would split is refused."""
    path = folder / "config.yaml"
    document = yaml.safe_load(path.read_text()) | {"curves": name}
    path.write_text(yaml.safe_dump(document))
    assert "curves" in refusal(folder)
