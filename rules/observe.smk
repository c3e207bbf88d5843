"""Observations. No rule declares the log as its output. A rule's output is the receipt of a seal,
and its command returns at once if the take is sealed. So these rules have receipts alone as
inputs, and no digest of code."""


localrules:
    foretell,
    publish,
    extract,
    import_curves,


rule probe:
    output:
        f"{RESULTS}/state/{{scope}}/hardware/{{take}}-{{plan8}}.json",
    log:
        f"{LOGS}/probe/{{scope}}-{{take}}-{{plan8}}.log",
    wildcard_constraints:
        scope="|".join(PIPELINE.site.here),
    conda:
        ENVIRONMENT
    threads: EVERY_CORE
    resources:
        **JOB_RESOURCES,
    params:
        command=nearfree("probe"),
    shell:
        "{params.command} {wildcards.scope} --take {wildcards.take} > {log:q} 2>&1"


rule foretell:
    input:
        prerequisites,
    output:
        f"{RESULTS}/state/{{scope}}/{{stream}}/{{take}}-{{plan8}}.json",
    log:
        f"{LOGS}/foretell/{{scope}}-{{stream}}-{{take}}-{{plan8}}.log",
    wildcard_constraints:
        scope="|".join(PIPELINE.site.here),
        stream="|".join(PIPELINE.foretell_streams) or "none",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("foretell"),
    shell:
        "{params.command} {wildcards.scope} {wildcards.stream} --take {wildcards.take}"
        " > {log:q} 2>&1"


rule measure:
    input:
        prerequisites,
        ancient(environment),
    output:
        f"{RESULTS}/state/{{scope}}/{{study}}/{{take}}-{{plan8}}.json",
    log:
        f"{LOGS}/measure/{{scope}}-{{study}}-{{take}}-{{plan8}}.log",
    wildcard_constraints:
        scope="|".join(PIPELINE.site.here),
        study="|".join(PIPELINE.measure_streams) or "none",
    conda:
        ENVIRONMENT
    threads: EVERY_CORE
    resources:
        **JOB_RESOURCES,
    params:
        plan=nearfree_command("plan"),
        python=lambda wildcards: shlex.quote(
            PIPELINE.python(wildcards.scope, wildcards.study)
        ),
        options=lambda wildcards: f"--results {shlex.quote(RESULTS)} --wait {WAIT_S}"
        + " --untested" * PIPELINE.site.untested
        + PIPELINE.simulated(wildcards.scope),
    shell:
        # On SIGTERM the shells wait for the measurement, which ends after its current round.
        "trap : TERM; (trap : TERM; {params.plan} {wildcards.scope} {wildcards.study} |"
        " {params.python} -m nearfree measure {wildcards.scope} {wildcards.study}"
        " --take {wildcards.take} --plan - {params.options}) > {log:q} 2>&1"


rule publish:
    output:
        f"{RESULTS}/state/{PUBLIC}/near_free_parallelism/{{take}}-{{plan8}}.json",
    log:
        f"{LOGS}/publish/{{take}}-{{plan8}}.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("publish"),
    shell:
        "{params.command} > {log:q} 2>&1"


rule extract:
    output:
        f"{RESULTS}/state/{SOURCES}/{{stream}}/{{take}}-{{plan8}}.json",
    log:
        f"{LOGS}/extract/{{stream}}-{{take}}-{{plan8}}.log",
    wildcard_constraints:
        stream="|".join(PIPELINE.releases) or "none",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("extract"),
        release=lambda wildcards: PIPELINE.release(wildcards.stream),
    shell:
        "{params.command} {params.release} --take {wildcards.take} > {log:q} 2>&1"


rule import_curves:
    output:
        touch(IMPORT),
    log:
        f"{LOGS}/import/{{stream}}.log",
    wildcard_constraints:
        stream="|".join(PIPELINE.imports) or "none",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("import_curves"),
        release=lambda wildcards: " --version ".join(PIPELINE.imports[wildcards.stream]),
    shell:
        "{params.command} {params.release} > {log:q} 2>&1"
