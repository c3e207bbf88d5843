"""Whether a setting is one that can exist."""

from nearfree.core.setting import FIELDS, Module, Setting
from nearfree.errors import ConfigError

ROUTED_OPERATIONS = ("dispatch", "combine")
"""The operations of a collective that follow the routing of tokens to experts."""


def required(module: Module) -> tuple[str, ...]:
    """Return the fields that a module's setting must say."""
    if module == "model":
        return ()
    return tuple(
        f.name
        for f in FIELDS.values()
        if f.needed and module in f.modules and module not in f.spared
    )


def check_setting(setting: Setting) -> None:
    """Raise ConfigError, naming the field, unless a setting is one that can exist."""
    missing = [name for name in required(setting.module) if getattr(setting, name) is None]
    if missing:
        raise ConfigError(
            f"a {setting.module} setting lacks {', '.join(missing)}",
            remedy="Give each of them in the study's shape",
        )
    routed = ("experts", "top_k") if setting.operation in ROUTED_OPERATIONS else ()
    lacking = [name for name in routed if getattr(setting, name) is None]
    if lacking:
        raise ConfigError(
            f"a {setting.operation} lacks {', '.join(lacking)}",
            remedy="Say among how many experts each token chooses, and how many it chooses",
        )
    grouped = setting.kv_heads is not None and setting.head_dim is not None
    if setting.module == "attention_layer" and setting.latent is None and not grouped:
        raise ConfigError(
            "an attention_layer setting lacks latent, or kv_heads and head_dim",
            remedy="Say what the cache holds of a position: a latent, or keys and values of heads",
        )
    if (setting.top_k or 0) > (setting.experts or setting.top_k or 0):
        raise ConfigError(
            f"top_k {setting.top_k} is larger than experts {setting.experts}",
            remedy="Choose at most as many experts a token as there are",
        )
    if setting.ep > (setting.experts or setting.ep):
        raise ConfigError(
            f"ep {setting.ep} is larger than experts {setting.experts}",
            remedy="Spread experts over at most as many groups as there are",
        )
    if (setting.heads or 0) % (setting.kv_heads or 1):
        raise ConfigError(
            f"heads {setting.heads} is no multiple of kv_heads {setting.kv_heads}",
            remedy="Let each key and value head serve the same number of query heads",
        )
