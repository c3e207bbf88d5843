"""A study of an engine without its files is left out with a reason; a sealed one is kept."""

import shutil
from pathlib import Path

import pytest
import yaml
from conftest import measure_rounds, write_take
from nearfree.config.plans import Plans
from nearfree.core.modules.engine import EngineStudy
from nearfree.engines.files import cached_weights, prebuilt_folder
from nearfree.log.names import Layout
from nearfree.pipeline.pipeline import Pipeline

from workflow import ROOT, make_project

STUDY = "llama_cpp_smollm2"
TARGET = f"cpu/{STUDY}"
HOW = " is not here: `nearfree fetch` gets it"
LACKING = f"llama_cpp 3.22.1 and the weights smollm2_135m{HOW}"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the shipped config with the engine's study and a small one, without a cache."""
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder, ignore=shutil.ignore_patterns("takes.yaml"))
    shutil.copytree(ROOT / "tests/configs/tiny", folder, dirs_exist_ok=True)
    add_study(folder)
    return folder


def add_study(folder: Path) -> None:
    """Add the shipped study of an engine to a config's own."""
    shipped = yaml.safe_load((ROOT / "config/studies.yaml").read_text())
    path = folder / "studies.yaml"
    path.write_text(path.read_text() + "\n" + yaml.safe_dump({STUDY: shipped[STUDY]}))


def put_files(pipeline: Pipeline, *, library: bool = True, weights: bool = True) -> None:
    """Put something where the study's files are looked for."""
    study = pipeline.config.studies[STUDY]
    assert isinstance(study, EngineStudy)
    if library:
        prebuilt_folder(study.backend, study.release).mkdir(parents=True)
    if weights:
        path = cached_weights(pipeline.config.weights_of(study).sha256)  # type: ignore[union-attr]
        path.parent.mkdir(parents=True)
        path.touch()


def test_what_is_not_here_is_left_out(config: Path, layout: Layout) -> None:
    """Without library and weights the study is no target, no evidence, and named with both."""
    pipeline = Pipeline(layout.root, config)
    assert pipeline.skip_reasons == {TARGET: LACKING}
    assert TARGET not in pipeline.targets
    assert STUDY not in pipeline.measure_streams
    assert "dense_ffn" in pipeline.measure_streams
    assert not [path for path in pipeline.evidence("cpu") if STUDY in path]


@pytest.mark.parametrize(
    ("here", "lacking"),
    [("library", "the weights smollm2_135m"), ("weights", "llama_cpp 3.22.1")],
)
def test_what_is_missing_is_named_alone(
    here: str, lacking: str, config: Path, layout: Layout
) -> None:
    """Of library and weights the one is named that is not here."""
    put_files(Pipeline(layout.root, config), **{"library": False, "weights": False} | {here: True})
    assert Pipeline(layout.root, config).skip_reasons == {TARGET: lacking + HOW}


def test_what_is_here_is_measured(config: Path, layout: Layout) -> None:
    """With both here, the study is a target as any other, and nothing is left out."""
    put_files(Pipeline(layout.root, config))
    pipeline = Pipeline(layout.root, config)
    assert pipeline.skip_reasons == {}
    assert TARGET in pipeline.targets
    assert STUDY in pipeline.measure_streams


def test_a_sealed_study_needs_no_files(config: Path, layout: Layout) -> None:
    """A study whose take is sealed is evidence where its files are gone; another take is not."""
    plan = Plans(Pipeline(layout.root, config).config, "cpu").measure(STUDY)
    write_take(layout, stream=STUDY, plan=plan, work=measure_rounds)
    pipeline = Pipeline(layout.root, config)
    assert pipeline.skip_reasons == {}
    assert [path for path in pipeline.evidence("cpu") if STUDY in path]
    (config / "takes.yaml").write_text(f"cpu: {{{STUDY}: 2}}\n")
    assert Pipeline(layout.root, config).skip_reasons == {TARGET: LACKING}


def test_a_study_that_is_left_out_may_have_a_take_asked_for(config: Path, layout: Layout) -> None:
    """takes.yaml may name a study that is left out: it is known."""
    (config / "takes.yaml").write_text(f"cpu: {{{STUDY}: 3}}\n")
    assert Pipeline(layout.root, config).skip_reasons == {TARGET: LACKING}


def test_no_engine_is_simulated(
    config: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated platform an engine's study is left out, for a reason that no fetch mends."""
    monkeypatch.chdir(ROOT / "tests/golden/0_1_0/simulated")
    (config / "sources.yaml").unlink()
    (config / "config.yaml").write_text(
        "here: [h20]\ncurves: simulated/curves\nepsilon: 0.2\ntolerances: [0.2]\n"
    )
    path = config / "studies.yaml"
    path.write_text(
        yaml.safe_dump({STUDY: yaml.safe_load(path.read_text())[STUDY] | {"platforms": ["h20"]}})
    )
    put_files(Pipeline(layout.root, config))
    reasons = Pipeline(layout.root, config).skip_reasons
    assert reasons == {f"h20/{STUDY}": "no engine is simulated"}


def test_a_platform_that_no_study_names_is_said(config: Path, layout: Layout) -> None:
    """A platform in no study is only probed; the message says so and names a remedy."""
    assert Pipeline(layout.root, config).no_study_reasons == []
    path = config / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"here": ["cpu", "l40s"]}))
    (reason,) = Pipeline(layout.root, config).no_study_reasons
    assert reason.startswith("no study of the sets default, paper names l40s, so only its hardware")
    assert reason.endswith(f"{config}/studies.yaml")


@pytest.mark.slow
def test_the_workflow_says_it_in_one_line(tmp_path: Path, no_network: None) -> None:
    """A run names what it leaves out and how to get it; the rest is measured."""
    project = make_project(tmp_path / "project")
    add_study(project / "config")
    done = project.run("snakemake", "--cores", "1", "cpu/dense_ffn")
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if "left out" in text]
    assert line == f"{TARGET} is left out: {LACKING}"
    assert "no study of the sets" not in done.stderr
    refused = project.run("snakemake", "--cores", "1", "-n", TARGET)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stdout + refused.stderr
