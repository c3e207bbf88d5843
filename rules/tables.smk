"""Derivations: one rule per stage that makes tables, one job per stage and scope.

nearfree/derive/stages.py declares what each stage reads, writes and depends on.
"""

for stage in STAGES.values():
    if stage.tables:

        rule:
            name:
                stage.name
            input:
                MARKS * (stage.single == IMPORTED),
                by_scope(stage, PIPELINE.inputs),
            output:
                PIPELINE.outputs(stage),
            log:
                f"{LOGS}/tables/{stage.single or '{scope}'}-{stage.name}.log",
            localrule: True
            conda:
                ENVIRONMENT
            params:
                command=by_scope(
                    stage, lambda stage, scope: f"{nearfree(stage.name)} {scope}"
                ),
                config=by_scope(stage, PIPELINE.parameters),
                code=by_scope(stage, lambda stage, _: PIPELINE.code(stage.name)),
            shell:
                "{params.command} > {log:q} 2>&1"
