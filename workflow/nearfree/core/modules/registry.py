"""The registry of all kinds of modules, by name."""

from functools import reduce
from operator import or_
from typing import Any

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.attention_layer import ATTENTION_LAYER
from nearfree.core.modules.collective import COLLECTIVE
from nearfree.core.modules.delta_net import DELTA_NET
from nearfree.core.modules.dense_ffn import DENSE_FFN, GEMM
from nearfree.core.modules.engine import ENGINE
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.mamba2 import MAMBA2
from nearfree.core.modules.mla import MLA
from nearfree.core.modules.model import MODEL
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.modules.short_conv import SHORT_CONV
from nearfree.core.modules.stream_mixing import STREAM_MIXING
from nearfree.core.setting import Setting

KINDS: dict[str, ModuleKind] = {
    kind.name: kind
    for kind in (
        *(GEMM, DENSE_FFN, MOE_FFN, ATTENTION, MLA, INDEXER, ATTENTION_LAYER),
        *(DELTA_NET, MAMBA2, SHORT_CONV, STREAM_MIXING, COLLECTIVE, MODEL, ENGINE),
    )
}
MAIN = tuple(kind for kind in KINDS.values() if kind.main)
"""The kinds that the paper treats by themselves."""
STUDIES: Any = reduce(or_, (kind.study for kind in KINDS.values() if kind.study))
"""The union of all study types; Any, since type checkers accept no computed union."""


def kind_of(setting: Setting) -> ModuleKind:
    """Return the kind of module of a setting."""
    return KINDS[setting.module]
