"""Named targets: a platform, one study of it, all studies on one backend, one release.

A platform's target makes all its tables and figures. The target of a study, backend or release
makes sealed takes alone.
"""

for platform in PIPELINE.config.platforms:

    rule:
        name:
            platform
        input:
            PIPELINE.table(platform, "validation", "sensitivity"),
            f"{RESULTS}/figures/{platform}/figures.json",


for target, receipts in PIPELINE.targets.items():

    rule:
        name:
            target
        input:
            receipts,
