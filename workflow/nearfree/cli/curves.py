"""What `nearfree predict --curves` does: curve files for simulated platforms, one a platform."""

import argparse
from collections import Counter
from pathlib import Path

from nearfree.errors import ConfigError

_UNUSED = ("model", "attention", "moe", "batch", "context", "routing", "dtype", "epsilon",
           "positions", "accepted")  # fmt: skip


def write_curves(args: argparse.Namespace, folder: Path) -> None:
    """Write the curve file of each platform into a folder, and print what each holds."""
    from msgspec import json

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.curve_files import curve_file
    from nearfree.hardware.platforms import resolve
    from nearfree.log.document import replace
    from nearfree.log.names import Layout

    for name in _UNUSED:
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name} says nothing with --curves: what is asked are the studies of config/",
                remedy="Leave it out, or leave --curves out",
            )
    config = Config(args.config)
    platforms = args.platform or config.site.here
    answerer = Answerer(Layout(args.results), config, offline=not args.online)
    for scope in dict.fromkeys(resolve(config.platforms, each) for each in platforms):
        file = curve_file(config, scope, answerer)
        path = replace(folder / f"{scope}.json", json.encode(file, order="deterministic") + b"\n")
        points = sum(len(curve.n) for curve in file.curves)
        print(
            f"{path}: {file.device}, T(N) of {len(file.curves)} modules at {points} points, "
            f"{len(file.forwards)} models"
        )
        reasons = Counter((r.setting.module, r.setting.backend, r.refusal) for r in file.refused)
        for (module, backend, why), count in reasons.items():
            print(f"  refused: {module} on {backend}, {count} settings: {why}")
