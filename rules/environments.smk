"""Backends' environments on the shared file system: each is made once, for every job in it."""


localrules:
    environment,


# Snakemake deletes an output before it makes it again, so the output is a receipt beside the
# environment's own mark of completion.
rule environment:
    output:
        touch(".environments/{name}-{lock8}/receipt"),
    log:
        f"{LOGS}/environment/{{name}}-{{lock8}}.log",
    wildcard_constraints:
        name=r"[a-z0-9_]+",
        lock8=r"[0-9a-f]{8}",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("environment"),
    shell:
        "{params.command} {wildcards.name} > {log:q} 2>&1"
