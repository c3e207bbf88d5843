"""What the pipeline answers to the rules."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from conftest import write_take
from nearfree.core.scopes import IMPORTED
from nearfree.errors import ConfigError
from nearfree.log.names import Layout
from nearfree.pipeline.pipeline import Pipeline

from workflow import ROOT, make_project


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the shipped config with few studies."""
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder, ignore=shutil.ignore_patterns("takes.yaml"))
    shutil.copytree(ROOT / "tests/configs/tiny", folder, dirs_exist_ok=True)
    return folder


def test_a_model_elsewhere_is_part_of_what_deployments_rest_on(
    config: Path, layout: Layout, tmp_path: Path
) -> None:
    """Another file of a model, wherever a deployment names it, makes the tables of it anew."""
    named = tmp_path / "mine" / "config.json"
    named.parent.mkdir()
    shutil.copy(config / "models/qwen3_8b.json", named)
    entry = {"models": [str(named.parent)], "platforms": ["h200"]}
    (config / "deployments.yaml").write_text(yaml.safe_dump({"mine": entry}))
    before = Pipeline(layout.root, config).deployments()
    assert Pipeline(layout.root, config).deployments() == before
    layers = ('"num_hidden_layers": 36', '"num_hidden_layers": 9')
    named.write_text(named.read_text().replace(*layers))
    changed = Pipeline(layout.root, config).deployments()
    assert changed != before
    named.unlink()
    assert Pipeline(layout.root, config).deployments() not in (before, changed)


@pytest.mark.parametrize(
    ("takes", "message"),
    [
        ("mars: {dense_ffn: 2}", "names the unknown platform 'mars'"),
        ("cpu: {moon: 2}", "cpu has no study 'moon'"),
        ("sources: {vllm_0_20_2: 2}", "sources has no release 'vllm_0_20_2'"),
    ],
)
def test_a_take_of_what_is_not_there_is_refused(
    config: Path, layout: Layout, takes: str, message: str
) -> None:
    """Whatever takes.yaml names must be a platform, a study of it, or a release that is read."""
    (config / "takes.yaml").write_text(f"{takes}\n")
    with pytest.raises(ConfigError, match=message):
        Pipeline(layout.root, config)


def test_an_interpreter_that_the_config_names_is_taken(config: Path, layout: Layout) -> None:
    """An environment of the site is used if the config names it; else the workflow's own."""
    assert Pipeline(layout.root, config).python("cpu", "dense_ffn") == sys.executable
    path = config / "config.yaml"
    named = {"python": {"cpu": "/opt/mine/bin/python"}}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | named))
    pipeline = Pipeline(layout.root, config)
    assert pipeline.python("cpu", "dense_ffn") == "/opt/mine/bin/python"
    assert pipeline.interpreters("cpu") == {"cpu": "/opt/mine/bin/python"}


def test_an_import_is_unsealed_until_it_has_a_take(config: Path, layout: Layout) -> None:
    """What the config imports is to be imported as long as the log holds no take of its stream."""
    path = config / "config.yaml"
    axes = {"imports": ["aiconfigurator==0.12.0"]}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | axes))
    (stream,) = Pipeline(layout.root, config).unsealed_imports
    write_take(layout, scope=IMPORTED, stream=f"{stream}_other")
    assert Pipeline(layout.root, config).unsealed_imports == [stream]
    write_take(layout, scope=IMPORTED, stream=stream)
    assert Pipeline(layout.root, config).unsealed_imports == []


def test_an_editor_beside_the_workflow_changes_nothing(config: Path, layout: Layout) -> None:
    """A lock that an editor lays beside a config file or a model's is no cause to run again."""
    before = Pipeline(layout.root, config)
    digests = before.config_digest(), before.deployments()
    (config / ".#config.yaml").symlink_to("somebody@host.1234")
    (config / "models" / ".#qwen3_8b.json").symlink_to("somebody@host.1234")
    after = Pipeline(layout.root, config)
    assert (after.config_digest(), after.deployments()) == digests
    (config / "models" / "mine.json").write_text("{}")
    assert after.config_digest() != digests[0]
    assert after.deployments() != digests[1]


def test_takes_of_a_platform_without_curves_stand_beside_simulated_ones(
    config: Path, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retake in takes.yaml of a platform that is not simulated needs no curve file."""
    monkeypatch.chdir(tmp_path)
    path = config / "config.yaml"
    site = yaml.safe_load(path.read_text()) | {"here": ["h200"], "curves": "curves"}
    path.write_text(yaml.safe_dump(site))
    Path("curves").mkdir()
    Path("curves/h200.json").write_text("{}")
    (config / "takes.yaml").write_text("cpu: {dense_ffn: 2}\n")
    assert Pipeline(layout.root, config).platforms == ["h200"]
    (config / "takes.yaml").write_text("cpu: {nothing: 2}\n")
    with pytest.raises(ConfigError, match="cpu has no study 'nothing'"):
        Pipeline(layout.root, config)


@pytest.mark.slow
def test_folders_may_have_blanks_in_their_names(tmp_path: Path) -> None:
    """An interpreter, a results root, a config and logs in such folders are named to the shell."""
    project = make_project(tmp_path / "my project")
    (project / "config").rename(project / "my config")
    python = tmp_path / "my python" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    packages = sysconfig.get_path("purelib")
    folders = [f"{name}=my {name}" for name in ("results", "config", "logs")]
    done = subprocess.run(
        [python, "-m", "snakemake", "--cores", "1", "my results/tables/public/boundaries.parquet",
         "--config", *folders],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": f"{project / 'workflow'}{os.pathsep}{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "my results/tables/public/boundaries.parquet").is_file()
    assert (project / "my logs/tables/public-boundaries.log").is_file()
