"""What several commands share: the config and the platform at hand."""

import argparse

from nearfree.config import Config
from nearfree.errors import ConfigError


def here(args: argparse.Namespace) -> tuple[Config, str]:
    """Return the config and the platform that a command names; it must be this machine."""
    from nearfree.hardware.platforms import resolve

    config = Config(args.config)
    scope = resolve(config.platforms, args.platform)
    if scope not in config.site.here:
        raise ConfigError(
            f"{scope} is not this machine: config says here is {', '.join(config.site.here)}",
            remedy=f"Add {scope} to `here` in {args.config}/config.yaml if it is",
        )
    return config, scope
