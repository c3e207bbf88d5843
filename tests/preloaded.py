"""Snakemake's processes, forked from one that has imported it: to import it takes two seconds.

Each worker of the tests has such a process. It has imported nothing of this project, whose package
a workflow finds in its own folder; the forked one has the folder, environment, paths and streams
that `python -m snakemake` would have there.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODULE = "snakemake"


def run(
    words: Sequence[str], folder: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake with arguments in a folder; return its output and exit code."""
    with TemporaryDirectory() as output_folder:
        out, err = (Path(output_folder, name) for name in ("out", "err"))
        request = {"words": words, "folder": str(folder), "env": dict(env)}
        process = _server()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({**request, "streams": [str(out), str(err)]}) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        command = [sys.executable, "-m", MODULE, *words]
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


@cache
def _server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.communicate()

    atexit.register(end)
    return process


def _become(
    words: Sequence[str], folder: str, env: Mapping[str, str], streams: Sequence[str]
) -> None:
    """Be what `python -m snakemake` is in a folder and an environment."""
    for number, name in enumerate((os.devnull, *streams)):
        opened = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [folder, *filter(None, paths), *(path for path in sys.path if path not in paths)]
    sys.argv[:] = [MODULE, *words]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def _serve() -> None:
    """Fork a process for each line that is read, and write how it ended."""
    import snakemake.cli

    snakemake.cli.get_argument_parser()  # which imports the plugins
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            _become(**request)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)
    _serve()
