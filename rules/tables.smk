"""Derivations: one job a stage and scope. `code` holds a digest of what makes the tables."""


localrules:
    project,
    boundaries,
    predictions,
    validation,
    accuracy,
    outlook,
    schedules,
    claims,


rule project:
    input:
        lambda wildcards: PIPELINE.evidence(wildcards.scope),
    output:
        PIPELINE.table(
            "{scope}",
            "platforms",
            "settings",
            "latency",
            "work",
            "time_shares",
            "granularity",
            "tuned",
        ),
        PIPELINE.seals_root("{scope}"),
    log:
        f"{LOGS}/tables/{{scope}}-project.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("tables project"),
        datasheets=lambda wildcards: PIPELINE.datasheets(wildcards.scope),
        code=lambda wildcards: PIPELINE.code("project"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"


rule boundaries:
    input:
        PIPELINE.table("{scope}", "latency"),
        PIPELINE.seals_root("{scope}"),
    output:
        PIPELINE.table("{scope}", "boundaries", "sensitivity"),
    log:
        f"{LOGS}/tables/{{scope}}-boundaries.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("tables boundaries"),
        tolerances=PIPELINE.site.tolerances,
        epsilon=PIPELINE.site.epsilon,
        code=lambda wildcards: PIPELINE.code("boundaries"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"


rule predictions:
    input:
        PIPELINE.table("{scope}", "settings", "platforms"),
        PIPELINE.seals_root("{scope}"),
        PIPELINE.answering(),
    output:
        PIPELINE.table("{scope}", "predictions"),
    log:
        f"{LOGS}/tables/{{scope}}-predictions.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("tables predictions"),
        tolerances=PIPELINE.site.tolerances,
        code=lambda wildcards: PIPELINE.code("predictions"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"


rule validation:
    input:
        PIPELINE.table("{scope}", "boundaries", "predictions", "time_shares"),
        PIPELINE.seals_root("{scope}"),
    output:
        PIPELINE.table("{scope}", "validation", "composition", "scores"),
    log:
        f"{LOGS}/tables/{{scope}}-validation.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("tables validation"),
        code=lambda wildcards: PIPELINE.code("validation"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"


rule accuracy:
    input:
        [IMPORT.format(stream=stream) for stream in PIPELINE.imports],
        PIPELINE.answering(),
    output:
        PIPELINE.table(IMPORTED, "accuracy", "drift"),
    log:
        f"{LOGS}/tables/{IMPORTED}-accuracy.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree(f"tables accuracy {IMPORTED}"),
        epsilon=PIPELINE.site.epsilon,
        datasheets=PIPELINE.datasheets(PUBLIC),
        code=lambda wildcards: PIPELINE.code("accuracy"),
    shell:
        "{params.command} > {log} 2>&1"


rule outlook:
    input:
        PIPELINE.table(PUBLIC, "platforms"),
        PIPELINE.evidence(PUBLIC),
        PIPELINE.answering(),
    output:
        PIPELINE.outlook,
    log:
        f"{LOGS}/tables/{PUBLIC}-outlook.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree(f"tables outlook {PUBLIC}"),
        epsilon=PIPELINE.site.epsilon,
        tolerances=PIPELINE.site.tolerances,
        deployments=PIPELINE.deployments(),
        code=lambda wildcards: PIPELINE.code("outlook"),
    shell:
        "{params.command} > {log} 2>&1"


rule schedules:
    input:
        PIPELINE.table(PUBLIC, "platforms"),
        PIPELINE.evidence(PUBLIC),
        PIPELINE.answering(),
    output:
        PIPELINE.table(PUBLIC, "schedules"),
    log:
        f"{LOGS}/tables/{PUBLIC}-schedules.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree(f"tables schedules {PUBLIC}"),
        tolerances=PIPELINE.site.tolerances,
        deployments=PIPELINE.deployments(),
        code=lambda wildcards: PIPELINE.code("schedules"),
    shell:
        "{params.command} > {log} 2>&1"


rule claims:
    input:
        PIPELINE.table(
            "{scope}",
            "platforms",
            "latency",
            "work",
            "boundaries",
            "predictions",
            "composition",
        ),
        lambda wildcards: PIPELINE.judged_with(wildcards.scope),
    output:
        PIPELINE.table("{scope}", "claims"),
    log:
        f"{LOGS}/tables/{{scope}}-claims.log",
    conda:
        ENVIRONMENT
    params:
        command=nearfree("tables claims"),
        epsilon=PIPELINE.site.epsilon,
        code=lambda wildcards: PIPELINE.code("claims"),
    shell:
        "{params.command} {wildcards.scope} > {log} 2>&1"
