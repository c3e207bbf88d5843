"""Deployments of a config: read by type, and their platforms known."""

import shutil
from pathlib import Path

import pytest
from derive.questions import ROOT
from nearfree.cli.common import positions
from nearfree.config.files import BOUNDS, Config, DeploymentSpec
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.errors import ConfigError

REQUIRED = "models: [qwen3_8b], platforms: [h20]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a config folder of its own."""
    return Path(shutil.copytree(ROOT / "config", tmp_path / "config"))


def read_deployments(folder: Path, text: str) -> dict[str, DeploymentSpec]:
    """Return the deployments of a config with this deployments.yaml."""
    (folder / "deployments.yaml").write_text(text, encoding="utf-8")
    return Config(folder).deployments


def test_every_shipped_entry_is_known() -> None:
    """Every entry of the repository names models and releases that exist."""
    config = Config(ROOT / "config")
    assert config.deployments
    for spec in config.deployments.values():
        assert deployments(config, spec, any_class=True)
        for release in (*spec.attention, *spec.moe):
            assert "==" not in release or release in config.releases


def test_without_the_file_there_are_no_deployments(folder: Path) -> None:
    """Without a deployments.yaml there are no deployments."""
    (folder / "deployments.yaml").unlink()
    assert Config(folder).deployments == {}


def test_a_context_may_be_as_long_as_one_of_the_command_line(folder: Path) -> None:
    """A context may have a million positions and more, up to the most that `--context` takes."""
    longest = positions("99999999")
    for context in (1_048_576, longest):
        entry = read_deployments(folder, f"a: {{{REQUIRED}, context: [{context}]}}")
        assert entry["a"].context == (context,)


def test_models_and_platforms_are_enough(folder: Path) -> None:
    """Models and platforms are required; the defaults are b = 1, L = 4096 and both bounds."""
    assert read_deployments(folder, f"a: {{{REQUIRED}}}") == {
        "a": DeploymentSpec(models=("qwen3_8b",), platforms=("h20",), batch=(1,), context=(4096,))
    }
    assert read_deployments(folder, f"a: {{{REQUIRED}}}")["a"].routing == BOUNDS


@pytest.mark.parametrize(
    ("entry", "thing"),
    [
        ("a: {models: [qwen3_8b], platforms: [mars]}", "'mars'"),
        ("a: {models: [qwen3_8b], platforms: [h20, mars]}", "a.platforms"),
        ("a: {models: [qwen3_8b]}", "platforms"),
        ("a: {models: [], platforms: [h20]}", "models"),
        (f"a: {{{REQUIRED}, batch: [0]}}", "batch"),
        (f"a: {{{REQUIRED}, batch: []}}", "batch"),
        (f"a: {{{REQUIRED}, batch: [1.5]}}", "batch"),
        (f"a: {{{REQUIRED}, context: x}}", "context"),
        (f"a: {{{REQUIRED}, context: [.nan]}}", "context"),
        (f"a: {{{REQUIRED}, context: [100000000]}}", "context"),
        (f"a: {{{REQUIRED}, routing: [random]}}", "routing"),
        (f"a: {{{REQUIRED}, attention: flash-attn}}", "attention"),
        (f"a: {{{REQUIRED}, moe: [1]}}", "moe"),
        (f"a: {{{REQUIRED}, moe: [{'x' * 300}]}}", "moe"),
        (f"a: {{{REQUIRED}, drawn: perhaps}}", "drawn"),
        (f"a: {{{REQUIRED}, dtype: int3}}", "dtype"),
        (f"a: {{{REQUIRED}, speed: 9}}", "speed"),
        (f"A b: {{{REQUIRED}}}", "A b"),
        (f"a: {{models: [{'x' * 300}], platforms: [h20]}}", "models"),
        ("a: [1]", "a"),
        ("[1]", "deployments.yaml"),
    ],
)
def test_a_bad_entry_is_refused(folder: Path, entry: str, thing: str) -> None:
    """An entry of another form, or with an unknown platform, is refused with file and key."""
    with pytest.raises(ConfigError) as error:
        read_deployments(folder, entry)
    assert "deployments.yaml" in error.value.what
    assert thing in str(error.value)
