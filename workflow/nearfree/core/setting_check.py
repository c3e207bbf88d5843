"""Checks of a setting: required fields, and values that contradict each other."""

from nearfree.core.candidates import check_cache
from nearfree.core.setting import FIELDS, Module, Setting
from nearfree.errors import ConfigError

ROUTED_OPERATIONS = ("dispatch", "combine")
"""The operations of a collective that follow the routing of tokens to experts."""


def required(module: Module) -> tuple[str, ...]:
    """Return the fields that a module's setting must give."""
    if module == "model":
        return ()
    return tuple(
        f.name
        for f in FIELDS.values()
        if f.needed and module in f.modules and module not in f.spared
    )


def check_setting(setting: Setting) -> None:
    """Raise ConfigError, naming the field, if a setting lacks a field or contradicts itself."""
    missing = [name for name in required(setting.module) if getattr(setting, name) is None]
    if missing:
        raise ConfigError(
            f"a {setting.module} setting lacks {', '.join(missing)}",
            remedy="Give each of them in the study's shape",
        )
    if setting.module == "engine":
        check_cache(setting.backend, setting.kv_dtype)
    routing_fields = ("experts", "top_k") if setting.operation in ROUTED_OPERATIONS else ()
    missing_routing = [name for name in routing_fields if getattr(setting, name) is None]
    if missing_routing:
        raise ConfigError(
            f"a {setting.operation} lacks {', '.join(missing_routing)}",
            remedy="Give the number of experts, and the number that each token goes to",
        )
    grouped = setting.kv_heads is not None and setting.head_dim is not None
    if setting.module == "attention_layer" and setting.latent is None and not grouped:
        raise ConfigError(
            "an attention_layer setting lacks latent, or kv_heads and head_dim",
            remedy="Give what the cache holds per position: a latent, or keys and values of heads",
        )
    if (setting.top_k or 0) > (setting.experts or setting.top_k or 0):
        raise ConfigError(
            f"top_k {setting.top_k} is larger than experts {setting.experts}",
            remedy="Choose at most as many experts per token as there are",
        )
    if setting.ep > (setting.experts or setting.ep):
        raise ConfigError(
            f"ep {setting.ep} is larger than experts {setting.experts}",
            remedy="Distribute experts over at most as many groups as there are experts",
        )
    if (setting.heads or 0) % (setting.kv_heads or 1):
        raise ConfigError(
            f"heads {setting.heads} is no multiple of kv_heads {setting.kv_heads}",
            remedy="Let each key and value head serve the same number of query heads",
        )
