"""Backends' environments on the shared file system, made once for every job that runs in them."""


localrules:
    environment,


# Snakemake deletes an output before it makes it again, so this is not the environment's own mark.
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
