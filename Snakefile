"""From observations to a report: see docs/guide.md. Logic is in workflow/nearfree."""

from snakemake.utils import min_version

min_version("9.27")


include: "rules/pipeline.smk"
include: "rules/environments.smk"
include: "rules/observe.smk"
include: "rules/tables.smk"
include: "rules/draw.smk"
include: "rules/targets.smk"


rule all:
    default_target: True
    input:
        REPORT,
        LEDGER,
