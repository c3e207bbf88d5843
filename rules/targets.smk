"""Named targets: a platform, one study of it, all studies on one backend, one release.

A platform's target makes all its tables and figures. The target of a study, backend or release
makes sealed takes alone.
"""

# Not `platform`: these are globals of Snakemake's own module, which has that name.
for platform_name in PIPELINE.config.platforms:

    rule:
        name:
            platform_name
        input:
            PIPELINE.table(
                platform_name,
                *(
                    table
                    for stage in STAGES.values()
                    if stage.has(platform_name)
                    for table in stage.tables
                ),
            ),
            f"{RESULTS}/figures/{platform_name}/figures.json",


for target, receipts in PIPELINE.targets.items():

    rule:
        name:
            target
        input:
            receipts,
