"""The config, checked before anything runs, and what all rules share."""

import shlex
import sys
from functools import cache
from pathlib import Path

from nearfree.config.cluster import RESOURCES
from nearfree.core.scopes import IMPORTED, PUBLIC, SOURCES
from nearfree.derive.stages import COMMANDS, STAGES
from nearfree.errors import NearfreeError
from nearfree.pipeline.cluster.check import require_slurm
from nearfree.pipeline.pipeline import Pipeline

RESULTS = str(config.get("results", "results"))
CONFIG = str(config.get("config", "config"))
REPORT = f"{RESULTS}/report/index.html"
LEDGER = f"{RESULTS}/state/ledger.json"
LOGS = str(config.get("logs", "logs"))
# An import's seal is named after the file that was found, so a mark stands for it: of a results
# root that holds one.
IMPORT = f"{LOGS}/import/{{stream}}.done"
ENVIRONMENT = "../envs/cpu.yaml"
# A batch system may start a job anew before it has seen the end of the old one.
WAIT_S = 300
# Nothing runs beside a measurement; on a cluster config/cluster.yaml says how many cores a job gets.
EVERY_CORE = workflow.resource_settings.cores or 1


def or_exit(call, *arguments):
    """Return what a call returns, or end the workflow with the message of its mistake."""
    try:
        return call(*arguments)
    except NearfreeError as error:
        print(f"nearfree: error: {error}", file=sys.stderr)
        sys.exit(2)


PIPELINE = or_exit(Pipeline, Path(RESULTS), Path(CONFIG))
MARKS = [IMPORT.format(stream=stream) for stream in PIPELINE.imports]
if workflow.is_main_process:
    for stream in PIPELINE.unsealed_imports:
        Path(IMPORT.format(stream=stream)).unlink(missing_ok=True)
if PIPELINE.site.curves:  # what is simulated disturbs nothing
    EVERY_CORE = 1


def nearfree(rule):
    """Return a rule's command with this workflow's interpreter, results root and config."""
    return nearfree_command(COMMANDS[rule])


def nearfree_command(command):
    """Return a command with this workflow's interpreter, results root and config."""
    roots = ("--results", RESULTS, "--config", CONFIG)
    return shlex.join([sys.executable, "-m", "nearfree", *command.split(), *roots])


onstart:
    for name, why in PIPELINE.left_out.items():
        print(f"{name} is left out: {why}", file=sys.stderr)
    for why in PIPELINE.unstudied:
        print(why, file=sys.stderr)


@cache
def scheduler_there():
    """End the workflow unless jobs can be submitted; asked once."""
    or_exit(require_slurm)


def before(wildcards):
    """Return what an observation waits for; before the first one, SLURM must be there."""
    submits = workflow.executor_plugin and workflow.executor_plugin.name == "slurm"
    if submits and workflow.is_main_process:
        scheduler_there()
    stream = getattr(wildcards, "study", None) or wildcards.stream
    return PIPELINE.before(wildcards.scope, stream)


def environment(wildcards):
    """Return the receipt of the environment that a study is measured in, if one is made for it."""
    scope, study = wildcards.scope, wildcards.study
    renew = workflow.is_main_process
    return or_exit(lambda: PIPELINE.environment(scope, study, renew=renew))


def asked(resource):
    """Return a resource of observing jobs as a function of what is observed and the attempt."""

    def of(wildcards, attempt):
        study = getattr(wildcards, "study", "hardware")
        return PIPELINE.resource(resource, wildcards.scope, study, attempt)

    return of


def of(stage, function):
    """Return what a function says of a stage's scope, as a function of wildcards."""
    return lambda wildcards: function(stage, getattr(wildcards, "scope", stage.single))


ASKED = {name: asked(name) for name in RESOURCES}


wildcard_constraints:
    scope=r"[a-z0-9_]+",
    take=r"[0-9]+",
    plan8=r"[0-9a-f]{8}",
