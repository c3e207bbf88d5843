"""The workflow's steps: each rule of the Snakefile that runs a `nearfree` command."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from nearfree.log.reader import read_bytes

SNAKEFILE = "Snakefile"
_INCLUDE = re.compile(r'^include: "(rules/\w+\.smk)"$', re.MULTILINE)
_RULE = re.compile(r"^rule (\w+):\n((?:[ \t].*\n|\n)*)", re.MULTILINE)
_COMMAND = re.compile(r'(?:nearfree\(f?"|-m nearfree )([a-z]+(?: [a-z]+)*)')


class Step(Struct, frozen=True):
    """A rule, and the words of its command that are always the same."""

    rule: str
    command: str

    @property
    def tool(self) -> str:
        """The subcommand that does the work."""
        return self.command.partition(" ")[0]

    def ran(self, command: str) -> bool:
        """Say whether a recorded command line is one of this step's."""
        return f"{command} ".startswith(f"nearfree {self.command} ")


def step_of(command: str, steps: Iterable[Step]) -> Step | None:
    """Return the step that a recorded command line is of, None where no rule has that command.

    `import published` is an `import`, too: the longest command is meant.
    """
    fitting = [step for step in steps if step.ran(command)]
    return max(fitting, key=lambda step: len(step.command), default=None)


def read_steps(project: Path) -> list[Step]:
    """Return the steps of a project's workflow, in the order of its rules."""
    return list(_steps(project))


def _steps(project: Path) -> Iterator[Step]:
    for name in _INCLUDE.findall(_text(project / SNAKEFILE)):
        for rule, body in _RULE.findall(_text(project / name)):
            if commands := _COMMAND.findall(body):
                yield Step(rule, commands[-1])


def _text(path: Path) -> str:
    return read_bytes(path).decode(errors="replace")
