"""Deployments of a config: read by type, and their platforms known."""

import shutil
from pathlib import Path

import pytest
from derive.questions import ROOT
from nearfree.cli.common import positions
from nearfree.config.files import BOUNDS, Config, DeploymentSpec
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.errors import ConfigError

LEAST = "models: [qwen3_8b], platforms: [h20]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a config folder of its own."""
    return Path(shutil.copytree(ROOT / "config", tmp_path / "config"))


def given(folder: Path, text: str) -> dict[str, DeploymentSpec]:
    """Return what a config with this deployments.yaml asks about."""
    (folder / "deployments.yaml").write_text(text, encoding="utf-8")
    return Config(folder).deployments


def test_what_is_shipped_can_be_asked() -> None:
    """Every entry of the repository names models and releases that are there."""
    config = Config(ROOT / "config")
    assert config.deployments
    for asked in config.deployments.values():
        assert deployments(config, asked, any_class=True)
        for release in (*asked.attention, *asked.moe):
            assert "==" not in release or release in config.releases


def test_an_absent_file_asks_nothing(folder: Path) -> None:
    """Without a deployments.yaml nothing is asked about."""
    (folder / "deployments.yaml").unlink()
    assert Config(folder).deployments == {}


def test_a_context_may_be_as_long_as_one_of_the_command_line(folder: Path) -> None:
    """A million positions and more, which models are made for, up to `--context`'s most."""
    longest = positions("99999999")
    for context in (1_048_576, longest):
        entry = given(folder, f"a: {{{LEAST}, context: [{context}]}}")
        assert entry["a"].context == (context,)


def test_the_least_that_is_said(folder: Path) -> None:
    """Models and platforms are enough; the rest is b = 1, L = 4096 and both bounds."""
    assert given(folder, f"a: {{{LEAST}}}") == {
        "a": DeploymentSpec(models=("qwen3_8b",), platforms=("h20",), batch=(1,), context=(4096,))
    }
    assert given(folder, f"a: {{{LEAST}}}")["a"].routing == BOUNDS


@pytest.mark.parametrize(
    ("entry", "thing"),
    [
        ("a: {models: [qwen3_8b], platforms: [mars]}", "'mars'"),
        ("a: {models: [qwen3_8b], platforms: [h20, mars]}", "a.platforms"),
        ("a: {models: [qwen3_8b]}", "platforms"),
        ("a: {models: [], platforms: [h20]}", "models"),
        (f"a: {{{LEAST}, batch: [0]}}", "batch"),
        (f"a: {{{LEAST}, batch: []}}", "batch"),
        (f"a: {{{LEAST}, batch: [1.5]}}", "batch"),
        (f"a: {{{LEAST}, context: x}}", "context"),
        (f"a: {{{LEAST}, context: [.nan]}}", "context"),
        (f"a: {{{LEAST}, context: [100000000]}}", "context"),
        (f"a: {{{LEAST}, routing: [random]}}", "routing"),
        (f"a: {{{LEAST}, attention: flash-attn}}", "attention"),
        (f"a: {{{LEAST}, moe: [1]}}", "moe"),
        (f"a: {{{LEAST}, moe: [{'x' * 300}]}}", "moe"),
        (f"a: {{{LEAST}, drawn: perhaps}}", "drawn"),
        (f"a: {{{LEAST}, dtype: int3}}", "dtype"),
        (f"a: {{{LEAST}, speed: 9}}", "speed"),
        (f"A b: {{{LEAST}}}", "A b"),
        (f"a: {{models: [{'x' * 300}], platforms: [h20]}}", "models"),
        ("a: [1]", "a"),
        ("[1]", "deployments.yaml"),
    ],
)
def test_what_is_refused(folder: Path, entry: str, thing: str) -> None:
    """An entry of another form, or with an unknown platform, is refused with file and key."""
    with pytest.raises(ConfigError) as refused:
        given(folder, entry)
    assert "deployments.yaml" in refused.value.what
    assert thing in str(refused.value)
