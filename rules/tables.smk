"""Derivations, a rule for each stage that makes tables: one job a stage and scope.

What each reads, writes and depends on stands in nearfree/derive/stages.py.
"""

for stage in STAGES.values():
    if stage.tables:

        rule:
            name:
                stage.name
            input:
                MARKS * (stage.single == IMPORTED),
                of(stage, PIPELINE.inputs),
            output:
                PIPELINE.outputs(stage),
            log:
                f"{LOGS}/tables/{stage.single or '{scope}'}-{stage.name}.log",
            localrule: True
            conda:
                ENVIRONMENT
            params:
                command=of(
                    stage, lambda stage, scope: f"{nearfree(stage.name)} {scope}"
                ),
                config=of(stage, PIPELINE.parameters),
                code=of(stage, lambda stage, _: PIPELINE.code(stage.name)),
            shell:
                "{params.command} > {log:q} 2>&1"
