"""Figures, the report, the ledger, and one target a platform."""


localrules:
    figures,
    report,
    ledger,


rule figures:
    input:
        PIPELINE.table("{scope}", "latency", "work", "boundaries", "predictions"),
        PIPELINE.table(PUBLIC, "latency", "boundaries", "predictions"),
    output:
        f"{RESULTS}/figures/{{scope}}/figures.json",
    log:
        f"{LOGS}/figures/{{scope}}.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("figures"),
        epsilon=PIPELINE.site.epsilon,
        code=PIPELINE.code("figures"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"


rule report:
    input:
        [PIPELINE.evidence(scope) for scope in PIPELINE.scopes + PIPELINE.sources],
        [
            PIPELINE.table(scope, "granularity", "tuned", "work")
            for scope in PIPELINE.sources
        ],
        [
            PIPELINE.table(
                scope,
                "platforms",
                "latency",
                "boundaries",
                "sensitivity",
                "predictions",
                "validation",
                "granularity",
                "work",
            )
            for scope in PIPELINE.scopes
        ],
        expand(f"{RESULTS}/figures/{{scope}}/figures.json", scope=PIPELINE.platforms),
    output:
        REPORT,
    log:
        f"{LOGS}/report.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("report"),
        epsilon=PIPELINE.site.epsilon,
        code=PIPELINE.code("report"),
    shell:
        "{params.command} > {log} 2>&1"


rule ledger:
    input:
        [PIPELINE.evidence(scope) for scope in PIPELINE.scopes + PIPELINE.sources],
    output:
        LEDGER,
    log:
        f"{LOGS}/ledger.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("ledger"),
        config=PIPELINE.config_digest(),
        code=PIPELINE.code("ledger"),
    shell:
        "{params.command} > {log} 2>&1"


for known in PIPELINE.config.platforms:

    rule:
        name:
            known
        input:
            PIPELINE.table(known, "validation", "sensitivity"),
            f"{RESULTS}/figures/{known}/figures.json",
