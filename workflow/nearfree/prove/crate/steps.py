"""The workflow's steps: each of its rules, with the `nearfree` command that it runs."""

from msgspec import Struct

from nearfree.derive.stages import COMMANDS

SNAKEFILE = "Snakefile"


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


STEPS = tuple(Step(rule, command) for rule, command in COMMANDS.items())
"""Every step, in the order of the rules."""


def step_of(command: str) -> Step | None:
    """Return the step that a recorded command line is of, None where no rule has that command.

    `import published` is an `import`, too: the longest command is meant.
    """
    fitting = [step for step in STEPS if step.ran(command)]
    return max(fitting, key=lambda step: len(step.command), default=None)
