"""The configs of published models that a release of aiconfigurator-core holds, all 89."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.decoders.model_file import ModelFile, read_model_file
from nearfree.decoders.text_part import COMPOSITES
from nearfree.decoders.weights import stored
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from once import one_in
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from decoders.files import parameters, weights_bytes, write

pytestmark = pytest.mark.slow
FOLDER = r"aiconfigurator_core/model_configs/"
CONFIG_FILES = FOLDER + r".*(?<!hf_quant)_config\.json"
TYPE_IN_TRANSFORMERS = {
    "kimi_k2": "deepseek_v3",
    "deepseek_ref": "deepseek_v4",
    "minimax_m3": "minimax_m3_vl",
}
"""Names that transformers has under others."""
NOT_TEXT = re.compile(r"visi|visual|multi_modal|mm_projector")
K3 = 2_779_484_393_568
"""Of Kimi K3, whose class transformers does not have, nor is there a published count to compare: as
counted here from the shapes that vllm 0.33.0 loads, 2.8 trillion."""
NO_CLASS = {"mimo": 7_622_619_136, "nemotron-nas": 49_867_145_216, "kimi_k3": K3}
"""Published counts; MiMo's 7.83 billion have a layer of 0.21 billion that predicts further."""
NO_MEMORY: dict[str, str] = {}
"""Files without a memory, and the reason."""


def class_parameters(document: dict[str, Any]) -> int:
    """Return the parameters of the text part of transformers' model on the meta device."""
    kind = document.pop("model_type")
    text = document.get("text_config", document)
    for part in (document, text):
        for key in ("quantization_config", "auto_map"):
            part.pop(key, None)
    if text.get("model_type") in TYPE_IN_TRANSFORMERS:
        text["model_type"] = TYPE_IN_TRANSFORMERS[text["model_type"]]
    if kind in COMPOSITES and text is document:
        document = {"text_config": text}
    config = CONFIG_MAPPING[TYPE_IN_TRANSFORMERS.get(kind, kind)].from_dict(document)
    with torch.device("meta"):
        causal = type(config) in AutoModelForCausalLM._model_mapping
        model = (AutoModelForCausalLM if causal else AutoModelForImageTextToText).from_config(
            config
        )
    each_of = model.named_parameters()
    return sum(
        math.prod(parameter.shape) for name, parameter in each_of if not NOT_TEXT.search(name)
    )


def test_every_published_config_stores_what_its_class_has(
    tmp_path: Path, source_cache: Cache
) -> None:
    """Each file that a commit draws has the parameters of its class, or their published count."""
    files = fetch("aiconfigurator-core", "0.12.0", CONFIG_FILES, cache=source_cache).files
    assert len(files) == 89
    differ = {}
    for path, raw in sorted(files.items())[one_in(4, "configs")]:
        name = Path(path).name.removesuffix("_config.json")
        document = json.loads(raw)
        file = write(tmp_path, document)
        kind = document["model_type"]
        expected = NO_CLASS[kind] if kind in NO_CLASS else class_parameters(document)
        elements = sum(
            weight.elements for weight in stored(file).weights if weight.kind != "vision"
        )
        if elements != expected:
            differ[name] = (elements, expected)
    assert not differ


def test_every_published_config_has_a_memory(tmp_path: Path, source_cache: Cache) -> None:
    """Each file says what its weights take, and what is quantised is not read as plain."""
    files = fetch("aiconfigurator-core", "0.12.0", FOLDER + r".*\.json", cache=source_cache).files
    configs = [path for path in files if re.fullmatch(CONFIG_FILES, path)]
    assert len(configs) == 89
    refused, as_plain = {}, []
    for path in configs:
        start = path.removesuffix("config.json")
        folder = tmp_path / Path(start).name
        folder.mkdir()
        (folder / "config.json").write_bytes(files[path])
        companion = files.get(f"{start}hf_quant_config.json")
        if companion:
            (folder / "hf_quant_config.json").write_bytes(companion)
        model = read_model_file(folder)
        name = folder.name.removesuffix("_")
        if not (model.weights and model.cache and model.precision):
            refused[name] = "; ".join(map(str, model.refusals))
        elif (companion or b"quantization_config" in files[path]) and _all_plain(model):
            as_plain.append(name)
    assert refused == NO_MEMORY
    assert not as_plain


def _all_plain(model: ModelFile) -> bool:
    size = 4 if model.precision and model.precision.plain == "float32" else 2
    return weights_bytes(model) >= size * parameters(model)
