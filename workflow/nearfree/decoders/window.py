"""How far attention looks back, by the rule of each family; the same in every layer, or refused."""

from nearfree.decoders.keys import Keys

_MIXED = "Give a model whose layers all have the same attention"


def unwindowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001 (one signature for all)
    """Return None, for models that look at all positions."""
    if keys.has("sliding_window"):
        raise keys.wrong("sliding_window", "is no key of this model type", "Leave it out")
    return None


def windowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return `sliding_window`, for models where it holds wherever it is given.

    A file must say null to have none: without the key, Mistral's class has a window of 4096.
    Source: MistralConfig of transformers 5.23.
    """
    return keys.whole_or_null("sliding_window")


def switched_off(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return None, for models whose window, switched on, holds for some layers or is not known."""
    if keys.flag("use_sliding_window"):
        raise keys.wrong("use_sliding_window", "is not understood for this model type", _MIXED)
    return None


def switched(keys: Keys, layers: int) -> int | None:
    """Return the window of models in which layers from `max_window_layers` on have one.

    Source: Qwen2Config and Qwen3Config of transformers 5.23.
    """
    if not keys.flag("use_sliding_window"):
        return None
    without = keys.whole("max_window_layers", least=0)
    if 0 < without < layers:
        raise keys.wrong(
            "max_window_layers", f"leaves a window to some of {layers} layers alone", _MIXED
        )
    return None if without else keys.whole("sliding_window")


def check_layer_types(keys: Keys, layers: int, window: int | None) -> None:
    """Raise ConfigError unless `layer_types`, where given, says the same of every layer."""
    kind = "sliding_attention" if window else "full_attention"
    kinds = keys.list_of("layer_types", str)
    if not kinds:
        return
    if len(kinds) != layers:
        raise keys.wrong("layer_types", f"has {len(kinds)} entries for {layers} layers")
    others = sorted(set(kinds) - {kind})
    if others:
        raise keys.wrong("layer_types", f"has {others[0]!r:.40} where {kind} is read", _MIXED)
