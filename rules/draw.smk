"""Figures, the report and the ledger."""


localrules:
    figures,
    report,
    ledger,


rule figures:
    input:
        by_scope(STAGES["figures"], PIPELINE.inputs),
    output:
        f"{RESULTS}/figures/{{scope}}/figures.json",
    log:
        f"{LOGS}/figures/{{scope}}.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("figures"),
        config=by_scope(STAGES["figures"], PIPELINE.parameters),
        code=lambda wildcards: PIPELINE.code("figures"),
    shell:
        "{params.command} {wildcards.scope} > {log:q} 2>&1"


rule report:
    input:
        PIPELINE.inputs(STAGES["report"]),
        expand(f"{RESULTS}/figures/{{scope}}/figures.json", scope=PIPELINE.scopes),
        f"{CONFIG}/published/figures.yaml",
    output:
        REPORT,
    log:
        f"{LOGS}/report.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("report"),
        config=PIPELINE.parameters(STAGES["report"]),
        code=lambda wildcards: PIPELINE.code("report"),
    shell:
        "{params.command} > {log:q} 2>&1"


rule ledger:
    input:
        [PIPELINE.evidence(scope) for scope in PIPELINE.scopes + PIPELINE.sources],
        PIPELINE.extra_import_seals,
        MARKS,
    output:
        LEDGER,
    log:
        f"{LOGS}/ledger.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("ledger"),
        config=or_exit(PIPELINE.config_digest),
        code=lambda wildcards: PIPELINE.code("ledger"),
    shell:
        "{params.command} > {log:q} 2>&1"
