"""The text part of MiniCPM-V and MiniCPM-o, whose files say by a version which it is."""

from nearfree.decoders.keys import Keys

_VERSION = "version"
_TEXTS = {
    "minicpmv": {
        "2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3",
    },
    "minicpmo": {"2.6": "qwen2", "4.5": "qwen3"},
}  # fmt: skip


def text_type(outer: Keys) -> str:
    """Return the model type of the text part, whose keys stand among those of the file.

    Source: vllm 0.33.0, vllm/model_executor/models/minicpmv.py:2434-2483 and minicpmo.py:993-1044.

    Raises
    ------
    ConfigError
        The model type has no such text part, or the version is missing or not read.
    """
    kind = outer.text("model_type")
    if kind not in _TEXTS:
        raise outer.wrong("model_type", "has no part here that decodes text")
    version = str(outer.values[outer.one_of(_VERSION)])
    if version not in _TEXTS[kind]:
        raise outer.wrong(_VERSION, "is not read", f"Read are {', '.join(_TEXTS[kind])}")
    return _TEXTS[kind][version]
