"""The configs of published models that a release of aiconfigurator-core holds, all 89."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.decoders.text_part import WHOLES
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from decoders.files import write

pytestmark = pytest.mark.slow
WANTED = r"aiconfigurator_core/model_configs/.*(?<!hf_quant)_config\.json"
SAME = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4", "minimax_m3": "minimax_m3_vl"}
"""Names that transformers has under others."""
NOT_TEXT = re.compile(r"visi|visual|multi_modal|mm_projector")
NO_CLASS = {"mimo": 7_622_619_136, "nemotron-nas": 49_867_145_216}
"""Published counts; MiMo's 7.83 billion have a layer of 0.21 billion that predicts further."""
REFUSED = {"moonshotai--Kimi-K3"}
"""Of a class that no release of transformers has."""


def theirs(document: dict[str, Any]) -> int:
    """Return the parameters of the text part of transformers' model on the meta device."""
    kind = document.pop("model_type")
    text = document.get("text_config", document)
    for each in (document, text):
        for key in ("quantization_config", "auto_map"):
            each.pop(key, None)
    if text.get("model_type") in SAME:
        text["model_type"] = SAME[text["model_type"]]
    if kind in WHOLES and text is document:
        document = {"text_config": text}
    config = CONFIG_MAPPING[SAME.get(kind, kind)].from_dict(document)
    with torch.device("meta"):
        causal = type(config) in AutoModelForCausalLM._model_mapping
        model = (AutoModelForCausalLM if causal else AutoModelForImageTextToText).from_config(
            config
        )
    each_of = model.named_parameters()
    return sum(math.prod(each.shape) for name, each in each_of if not NOT_TEXT.search(name))


def test_every_published_config_stores_what_its_class_has(
    tmp_path: Path, source_cache: Cache
) -> None:
    """Each file has the parameters of its class, or their published count."""
    files = fetch("aiconfigurator-core", "0.12.0", WANTED, cache=source_cache).files
    assert len(files) == 89
    differ = {}
    for path, raw in files.items():
        name = Path(path).name.removesuffix("_config.json")
        document = json.loads(raw)
        file = write(tmp_path, document)
        if name in REFUSED:
            with pytest.raises(RefusedError):
                stored(file)
            continue
        kind = document["model_type"]
        expected = NO_CLASS[kind] if kind in NO_CLASS else theirs(document)
        found = sum(each.elements for each in stored(file).weights if each.kind != "vision")
        if found != expected:
            differ[name] = (found, expected)
    assert not differ
