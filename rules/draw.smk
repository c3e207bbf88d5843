"""Figures, the report and the ledger."""


localrules:
    figures,
    report,
    ledger,


rule figures:
    input:
        PIPELINE.table(
            "{scope}",
            "latency",
            "work",
            "boundaries",
            "predictions",
            "validation",
            "time_shares",
            "composition",
        ),
        PIPELINE.table(PUBLIC, "latency", "boundaries", "predictions"),
        lambda wildcards: [
            file
            for scope in PIPELINE.imported
            for file in PIPELINE.table(scope, "accuracy", "drift")
            if wildcards.scope == PUBLIC
        ],
        lambda wildcards: PIPELINE.outlook * (wildcards.scope == PUBLIC),
    output:
        f"{RESULTS}/figures/{{scope}}/figures.json",
    log:
        f"{LOGS}/figures/{{scope}}.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("figures"),
        imports=lambda wildcards: PIPELINE.site.imports * (wildcards.scope == PUBLIC),
        epsilon=PIPELINE.site.epsilon,
        code=lambda wildcards: PIPELINE.code("figures"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"


rule report:
    input:
        [PIPELINE.seals_root(scope) for scope in PIPELINE.scopes + PIPELINE.sources],
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
                "time_shares",
                "composition",
                "scores",
                "claims",
            )
            for scope in PIPELINE.scopes
        ],
        [PIPELINE.table(scope, "accuracy", "drift") for scope in PIPELINE.imported],
        PIPELINE.outlook,
        PIPELINE.table(PUBLIC, "schedules"),
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
        imports=PIPELINE.site.imports,
        epsilon=PIPELINE.site.epsilon,
        code=lambda wildcards: PIPELINE.code("report"),
    shell:
        "{params.command} > {log} 2>&1"


rule ledger:
    input:
        [PIPELINE.evidence(scope) for scope in PIPELINE.scopes + PIPELINE.sources],
        [IMPORT.format(stream=stream) for stream in PIPELINE.imports],
    output:
        LEDGER,
    log:
        f"{LOGS}/ledger.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("ledger"),
        config=PIPELINE.config_digest(),
        code=lambda wildcards: PIPELINE.code("ledger"),
    shell:
        "{params.command} > {log} 2>&1"
