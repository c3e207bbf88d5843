"""Vision towers beside a decoder, for the model types whose files give their sizes."""

from collections.abc import Callable

from msgspec import structs

from nearfree.decoders.keys import Keys
from nearfree.decoders.pieces import Matrix, linear


def qwen3_tower(keys: Keys) -> tuple[Matrix, ...]:
    """Return the weights of the vision tower of Qwen3-VL and Qwen3.5 from its `vision_config`.

    Source: Qwen3VLVisionModel and Qwen3_5VisionModel of transformers 5.23.
    """
    width, depth = keys.whole("hidden_size"), keys.whole("depth")
    merged_width = width * keys.whole("spatial_merge_size") ** 2
    d_ff, text_width = keys.whole("intermediate_size"), keys.whole("out_hidden_size")
    patch = keys.whole("patch_size") ** 2 * keys.whole("temporal_patch_size")
    blocks = {
        "norm1": (1, width),
        "norm2": (1, width),
        "attn.qkv": (width, 3 * width),
        "attn.proj": (width, width),
        "mlp.linear_fc1": (width, d_ff),
        "mlp.linear_fc2": (d_ff, width),
    }
    merge = {"linear_fc1": (merged_width, merged_width), "linear_fc2": (merged_width, text_width)}
    parts = [
        *linear("patch_embed.proj", "vision", keys.whole("in_channels") * patch, width, bias=True),
        *linear("pos_embed", "vision", width, keys.whole("num_position_embeddings")),
    ]
    deepstack_count = len(keys.list_of("deepstack_visual_indexes", int))
    for path, copies, matrices in (
        ("blocks.*", depth, blocks),
        ("merger", 1, {"norm": (1, width), **merge}),
        ("deepstack_merger_list.*", deepstack_count, {"norm": (1, merged_width), **merge}),
    ):
        for name, (inputs, outputs) in matrices.items() if copies else ():
            matrix = f"{path}.{name}"
            parts += linear(matrix, "vision", inputs, outputs, bias=True, copies=copies)
    return tuple(structs.replace(part, name=f"model.visual.{part.name}") for part in parts)


TOWERS: dict[str, Callable[[Keys], tuple[Matrix, ...]]] = dict.fromkeys(
    ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), qwen3_tower
)
"""By the model type of the composite model."""
