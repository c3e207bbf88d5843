"""Classes of models are read from registries' text, without running it."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends.model_classes import Classes, model_classes

PATH = "vllm/model_executor/models/registry.py"
REGISTRY = """
raise SystemExit("it is not run")
_TEXT_GENERATION_MODELS = {
    # [Decoder-only]
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "SmallForCausalLM": ("transformers", "TransformersForCausalLM"),
}
_EMBEDDING_MODELS = {"BertModel": ("bert", "BertEmbeddingModel")}
_MULTIMODAL_MODELS: dict = {"GemmaForConditionalGeneration": ("gemma", "Gemma")}
_TRANSFORMERS_SUPPORTED_MODELS = {"OlmoForCausalLM": ("transformers", "TransformersForCausalLM")}
_VLLM_MODELS = {
    **_TEXT_GENERATION_MODELS,
    **_EMBEDDING_MODELS,
    **_MULTIMODAL_MODELS,
    **_TRANSFORMERS_SUPPORTED_MODELS,
}
_PREVIOUSLY_SUPPORTED_MODELS = {"GoneForCausalLM": "0.9.2"}
"""


def test_tables_of_models_that_generate() -> None:
    """Tables of generating models are read; embeddings and removed models are left out."""
    classes = model_classes("vllm", {PATH: REGISTRY})
    own = frozenset({"LlamaForCausalLM", "GemmaForConditionalGeneration"})
    assert classes == Classes(own, frozenset({"SmallForCausalLM", "OlmoForCausalLM"}))


def test_a_table_that_is_not_merged_is_not_there() -> None:
    """A table that the registry does not merge is left out."""
    apart = REGISTRY.replace("    **_TRANSFORMERS_SUPPORTED_MODELS,\n", "")
    assert model_classes("vllm", {PATH: apart}).transformers == {"SmallForCausalLM"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("_VLLM_MODELS = {", "_ALL = {", "has no tables"),
        ("_MULTIMODAL_MODELS: dict =", "_IMAGES =", "has no tables"),
        ('("llama", "LlamaForCausalLM")', "llama()", "has an unknown form"),
        ('("llama", "LlamaForCausalLM")', '"llama"', "has an unknown form"),
        ("_EMBEDDING_MODELS = {", "_EMBEDDING_MODELS = {{", "is not Python"),
    ],
)
def test_a_registry_of_another_form_is_refused(old: str, new: str, why: str) -> None:
    """A registry of unknown form is refused."""
    with pytest.raises(SourceError, match=why):
        model_classes("vllm", {PATH: REGISTRY.replace(old, new)})


def test_entries_of_files() -> None:
    """An entry is one class or a list, defined or imported; a byte order mark is accepted."""
    files = {
        "sglang/srt/models/a.py": "\ufeffclass A: ...\nclass B: ...\nEntryClass = [A, B]\n",
        "sglang/srt/models/c.py": "from elsewhere import C\nEntryClass = C\n",
        "sglang/srt/models/common.py": "class D: ...\n",
    }
    assert model_classes("sglang", files) == Classes(frozenset("ABC"))


@pytest.mark.parametrize(
    "text",
    [
        "EntryClass = made()",
        "from elsewhere import C as D\nEntryClass = D",
        "class A: ...\nEntryClass = A\nEntryClass = [A]",
        "class A: ...\nEntryClass = (A,)",
        "class A: ...",
    ],
)
def test_entries_of_another_form_are_refused(text: str) -> None:
    """A name of no class, two entries, a tuple and no entry are refused."""
    with pytest.raises(SourceError, match="EntryClass"):
        model_classes("sglang", {"sglang/srt/models/a.py": text})
