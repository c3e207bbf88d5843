"""The README as a stranger follows it: every command, word by word."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nearfree.backends.adapters.kernel import ADAPTERS, Adapter
from nearfree.cli import main
from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.log.events import LatencyMeasured
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout

from workflow import NO_NETWORK, ROOT, Project, make_project

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent


def commands(name: str) -> list[str]:
    """Return the commands of a document's sh blocks, without their comments."""
    lines = "".join(BLOCK.findall((ROOT / name).read_text())).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


def give_environment(project: Project) -> None:
    """Let a clone use this environment, so that make finds nothing to install."""
    (project / ".venv").mkdir()
    (project / ".venv" / "bin").symlink_to(BIN)
    for stamp in ("python", "installed"):
        (project / ".venv" / stamp).touch()


def test_the_readme_names_the_test_command():
    """The command that CI calls is the README's."""
    assert "make test" in commands("README.md")
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path):
    """In a clone with this environment, each command but `make test` ends well, in order."""
    project = make_project(tmp_path / "clone")
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        (project / name).write_bytes((ROOT / name).read_bytes())
    # The rules and constants on record are part of a clone, and answer without the network.
    public = [f"results/events/public/{stream}" for stream in ("constants", "collective_constants")]
    for recorded in ("results/events/sources", *public):
        shutil.copytree(ROOT / recorded, project / recorded)
    # Answers for GPUs take the newest releases that a clone lists.
    shutil.copy(ROOT / "config/sources.yaml", project / "config/sources.yaml")
    give_environment(project)
    commands_run = [command for command in commands("README.md") if command != "make test"]
    assert commands_run[0] == "make install"
    for command in commands_run:
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=project.folder,
            env={**os.environ, "PYTHONPATH": str(project / "workflow"), **NO_NETWORK},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command == "make run":
            report = re.search(r"^report: (.+)$", done.stdout, re.MULTILINE)
            assert report
            assert Path(report[1]).is_file()
    shown = project.nearfree("log", "show", "cpu")
    assert "/2-" in shown


def test_the_readme_shows_what_the_audit_prints(built):
    """The lines of the first screen are the command's own, in order; `...` stands for others."""
    text = (ROOT / "README.md").read_text()
    shown = re.search(r"^```\n(boundaries:.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = built.nearfree("audit", "boundaries:5b1eae9b1bfa").splitlines()
    for line in shown[1].splitlines():
        if line.strip() not in {"", "..."}:
            assert line in lines, line
            lines = lines[lines.index(line) + 1 :]
    assert lines == []


@pytest.mark.parametrize("begins", ["predict --model qwen3_30b_a3b", "schedule vllm"])
def test_the_readme_shows_what_commands_print(begins, capsys, monkeypatch):
    """Below a command stands its standard output, line by line; a longer line is broken there."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    block = next(part for part in text.split("```sh\n")[1:] if f"nearfree {begins}" in part)
    commands_, _, rest = block.partition("\n```\n")
    command = [line for line in commands_.splitlines() if begins in line][-1]
    shown = re.search(r"^```\n(.*?)^```", rest, re.MULTILINE | re.DOTALL)[1]
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command, comments=True)[1:])
    assert not ended.value.code
    assert shown.split() == capsys.readouterr().out.split()


def on_cpu(adapter: Adapter, adapters: set[tuple[str, str]]) -> str:
    """Return the guide's cell of an adapter on a CPU, from the settings of the default set."""
    if "cpu" not in adapter.devices:
        return ""
    run = (adapter.module, adapter.backend) in adapters
    return "run by `make run`" if run else "run by tests alone"


def test_the_guide_tells_which_adapters_never_ran():
    """Its table names every adapter, and says `never run` where the tracked log has no sealed run.

    On a CPU the default set decides what `make run` runs; of GPUs the log that is in git does.
    """
    plans = Plans(Config(ROOT / "config"), "cpu").all().values()
    settings = [sweep.setting for plan in plans for sweep in getattr(plan, "sweeps", ())]
    adapters = {(setting.module, setting.backend) for setting in settings}
    tracked = subprocess.run(
        ["git", "ls-files", "results/events"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    scopes = {name.split("/")[2] for name in tracked if name.endswith(".seal.json")}
    gpus = {
        (event.data.setting.module, event.data.setting.backend)
        for scope in scopes - {"public", "sources"}
        for take in read_scope(Layout(ROOT / "results"), scope)
        for event in take.events_of(LatencyMeasured)
        if event.data.timer == "cuda_events"
    }
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \|([^|]*)\| ([^|]*) \|$",
        (ROOT / "docs/guide.md")
        .read_text()
        .partition("## What has run where")[2]
        .partition("\n## ")[0],
        re.MULTILINE,
    )
    stated = {(module, backend): (cpu.strip(), gpu) for module, backend, cpu, gpu in rows[1:]}
    assert stated == {
        (adapter.module, adapter.backend): (
            on_cpu(adapter, adapters),
            "run" if (adapter.module, adapter.backend) in gpus else "never run",
        )
        for adapter in ADAPTERS
    }
