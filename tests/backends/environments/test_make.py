"""Making real environments: once for several processes, and never in part."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_mistakes import one_message
from nearfree.backends.environments.lock import Environment, pins
from nearfree.backends.environments.make import _pip_options

from backends.environments.tiny import MEASURES, ROOT, call, entry, finish, make_tiny, start

pytestmark = pytest.mark.slow

MAKE = ("environment", "make", "tiny")


def environment_of(project: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Return the environment of a project, standing in its folder."""
    monkeypatch.chdir(project)
    return Environment("tiny")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose environment two processes asked for at once."""
    project = make_tiny(tmp_path_factory.mktemp("made") / "project")
    processes = [start(project, *MAKE) for _ in range(2)]
    answers = [finish(process) for process in processes]
    assert [code for code, _, _ in answers] == [0, 0], answers
    (project / "said").write_text("".join(sorted(out for _, out, _ in answers)))
    return project


def test_one_makes_it_and_the_other_waits(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that ask at once get the same interpreter, and only one of them installs."""
    output = (made / "said").read_text()
    assert (output.count("installing"), output.count("waiting")) == (1, 1)
    assert output.count(f"{environment_of(made, monkeypatch).python}\n") == 2


def test_what_was_made_is_what_the_lock_names(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has the wheels, what was built, and the project's own nearfree."""
    environment = environment_of(made, monkeypatch)
    program = "import nearfree, six, msgspec; print(six.__version__, nearfree.__file__)"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [environment.python, "-I", "-c", program],
        check=True, capture_output=True, text=True, env=clean,
    )  # fmt: skip
    assert process.stdout.split() == ["1.17.0", str(made / "workflow/nearfree/__init__.py")]
    assert environment.complete
    assert environment.sha256 in environment.mark.read_text()
    code, out, _ = finish(
        subprocess.Popen(
            [environment.python, "-m", "nearfree", "environment", "check", "tiny"],
            stdout=subprocess.PIPE, text=True, env=clean,
        )
    )  # fmt: skip
    assert (code, out) == (0, "this interpreter has the packages that envs/tiny.lock pins\n")


def test_it_is_made_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask again changes nothing, and needs neither pip nor an index."""
    environment = environment_of(made, monkeypatch)
    before = environment.mark.stat()
    pip = environment.folder / "bin/pip"
    pip.rename(pip.with_name("away"))
    assert call(made, *MAKE)[:2] == (0, f"{environment.python}\n")
    pip.with_name("away").rename(pip)
    assert environment.mark.stat() == before


def test_another_lock_is_another_environment(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed lock has a folder of its own; what was made from the old one stays."""
    old_environment = environment_of(made, monkeypatch)
    lock = old_environment.locks[0].read_text()
    old_environment.locks[0].write_text(f"{lock}# renewed\n")
    new = Environment("tiny")
    old_environment.locks[0].write_text(lock)
    assert new.folder != old_environment.folder
    assert (new.complete, old_environment.complete) == (False, True)


def test_an_environment_that_was_moved_is_not_believed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the project makes its own, since scripts and packages name the old folder."""
    for part in ("envs", ".environments"):
        shutil.copytree(made / part, tmp_path / part, symlinks=True)
    copy = environment_of(tmp_path, monkeypatch)
    assert copy.mark.is_file()
    assert not copy.complete


def test_what_is_built_comes_after_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the real locks flash-attn's alone takes two steps, and the first leaves only that out."""
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    monkeypatch.chdir(tmp_path)
    later = {}
    for name in ("vllm", "sglang", "flash_attn", "flashinfer", "xformers"):
        environment = Environment(name)
        environment.folder.mkdir(parents=True)
        steps = list(_pip_options(environment))
        wheels_only, all_pins = pins(Path(steps[0][-1])), pins(environment.locks[0])
        assert wheels_only.items() <= all_pins.items()
        assert (len(steps) == 2) == (wheels_only != all_pins)
        later[name] = all_pins.keys() - wheels_only.keys()
    assert {name: packages for name, packages in later.items() if packages} == {
        "flash_attn": {"flash-attn"}
    }


@pytest.mark.slow
def test_the_workflows_own_has_two_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu` is what the workflow needs and what measuring needs, with this Python."""
    project = make_tiny(tmp_path / "project", python="3.99")
    (project / "envs/base.lock").write_text("".join(map(entry, MEASURES)))
    (project / "envs/cpu.lock").write_text("six==1.17.0\n")
    code, out, _ = call(project, "environment", "make", "cpu")
    monkeypatch.chdir(project)
    cpu = Environment("cpu")
    assert (code, cpu.complete) == (0, True)
    assert out.endswith(f"{cpu.python}\n")
    (project / "envs/base.lock").write_text("other==1\n")
    assert Environment("cpu").folder != cpu.folder


@pytest.fixture
def silent() -> Iterator[tuple[str, socket.socket]]:
    """Return an index that accepts connections and never answers, and its socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple", server


@pytest.mark.slow
def test_a_killed_one_is_begun_anew(
    tmp_path: Path, silent: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill nothing is complete, and the next waits for what the killed one had started."""
    url, server = silent
    project = make_tiny(tmp_path / "project")
    killed = start(project, *MAKE, PIP_INDEX_URL=url, PIP_RETRIES="0")
    server.settimeout(120)
    asking, _ = server.accept()
    killed.send_signal(signal.SIGKILL)
    assert finish(killed)[0] == -signal.SIGKILL
    environment = environment_of(project, monkeypatch)
    assert not environment.complete
    (environment.folder / "left").touch()
    with Path(f"{environment.folder}.flock").open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second_process = start(project, *MAKE)
    time.sleep(1)
    assert second_process.poll() is None
    asking.close()
    server.close()
    code, out, err = finish(second_process)
    assert (code, err) == (0, "")
    assert "waiting" in out
    assert environment.complete
    assert not (environment.folder / "left").exists()


@pytest.mark.slow
def test_files_that_are_not_the_locks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a hash differs, pip's own message is shown, and the environment is not complete."""
    project = make_tiny(tmp_path / "project")
    environment = environment_of(project, monkeypatch)
    lock = environment.locks[0]
    lock.write_text(lock.read_text().replace("ff70335d468e", "000000000000"))
    answer = call(project, *MAKE)
    one_message(answer, "pip says", printed=True)
    assert "six" in answer[2]
    assert "hash" in answer[2].lower() or "sha256" in answer[2].lower()
    assert "nearfree environment make tiny" in answer[2]
    assert not Environment("tiny").complete


def test_without_its_python_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock for a Python that is not on the path says which, and leaves no folder."""
    project = make_tiny(tmp_path / "project", python="3.99")
    one_message(call(project, *MAKE), "python3.99", printed=True)
    assert not environment_of(project, monkeypatch).folder.exists()


@pytest.mark.slow
def test_without_an_index_the_message_is_pips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the index does not answer, one message says so; the next try is not held up."""
    project = make_tiny(tmp_path / "project")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    for _ in range(2):
        answer = call(project, *MAKE, PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="", **nowhere)
        one_message(answer, "pip says", printed=True)
        assert "No matching distribution" in answer[2]
    assert not environment_of(project, monkeypatch).complete
