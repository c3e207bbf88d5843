"""Targets by name: a platform, one study of it, all that runs on one backend, one release.

A platform is everything that it needs; a study or a backend is its sealed takes alone, from which
the platform's tables then follow.
"""

for known in PIPELINE.config.platforms:

    rule:
        name:
            known
        input:
            PIPELINE.table(known, "validation", "sensitivity"),
            f"{RESULTS}/figures/{known}/figures.json",


for target, receipts in PIPELINE.targets.items():

    rule:
        name:
            target
        input:
            receipts,
