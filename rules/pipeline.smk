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
# The name of an import's seal depends on the file that is found, so the rule's output is a mark.
IMPORT = f"{LOGS}/import/{{stream}}.done"
ENVIRONMENT = "../envs/cpu.yaml"
# A batch system may restart a job before the old one has ended.
WAIT_S = 300
# A measurement takes every core, so that no other job runs beside it. On a cluster
# config/cluster.yaml says how many cores a job gets.
EVERY_CORE = workflow.resource_settings.cores or 1


def or_exit(call, *arguments):
    """Return a call's result; on a NearfreeError end the workflow with its message."""
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
if PIPELINE.site.curves:  # simulated measurements do not disturb each other
    EVERY_CORE = 1


def nearfree(rule):
    """Return a rule's command with this workflow's interpreter, results root and config."""
    return nearfree_command(COMMANDS[rule])


def nearfree_command(command):
    """Return a command with this workflow's interpreter, results root and config."""
    roots = ("--results", RESULTS, "--config", CONFIG)
    return shlex.join([sys.executable, "-m", "nearfree", *command.split(), *roots])


onstart:
    for study, reason in PIPELINE.skip_reasons.items():
        print(f"{study} is left out: {reason}", file=sys.stderr)
    for reason in PIPELINE.no_study_reasons:
        print(reason, file=sys.stderr)


@cache
def check_scheduler():
    """End the workflow unless SLURM accepts jobs; checked once."""
    or_exit(require_slurm)


def prerequisites(wildcards):
    """Return the receipts that an observation waits for; check SLURM if it submits the jobs."""
    submits = workflow.executor_plugin and workflow.executor_plugin.name == "slurm"
    if submits and workflow.is_main_process:
        check_scheduler()
    stream = getattr(wildcards, "study", None) or wildcards.stream
    return PIPELINE.prerequisites(wildcards.scope, stream)


def environment(wildcards):
    """Return the receipt of the environment to make for a study; empty if none is needed."""
    scope, study = wildcards.scope, wildcards.study
    renew = workflow.is_main_process
    return or_exit(lambda: PIPELINE.environment(scope, study, renew=renew))


def job_resource(resource):
    """Return a job resource as Snakemake wants it: a function of wildcards and attempt."""

    def amount(wildcards, attempt):
        study = getattr(wildcards, "study", "hardware")
        return PIPELINE.resource(resource, wildcards.scope, study, attempt)

    return amount


def by_scope(stage, function):
    """Return `function(stage, scope)` as a function of wildcards, which hold the scope."""
    return lambda wildcards: function(stage, getattr(wildcards, "scope", stage.single))


JOB_RESOURCES = {name: job_resource(name) for name in RESOURCES}


wildcard_constraints:
    scope=r"[a-z0-9_]+",
    take=r"[0-9]+",
    plan8=r"[0-9a-f]{8}",
