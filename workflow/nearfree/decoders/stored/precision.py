"""How a checkpoint's matrices are stored and multiplied, looked up by their names."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import prod

from msgspec import Struct

from nearfree.core.precision import FORMATS, Dtype
from nearfree.decoders.names import Names, root
from nearfree.decoders.stored.quantised import Quantised
from nearfree.decoders.stored.schemes import Scheme
from nearfree.errors import Refusal, RefusedError

_HEADS = ("lm_head", "head")
_ROUTERS = ("gate", "router", "shared_expert_gate")
"""Routers, which engines build unquantised together with their children (`gate.wg`,
`router.layer`), and which quantisers leave out unless a file names them. Source: the models of vllm
0.33.0; only qwen3_moe.py passes a quantisation, and files of that model leave the gates out."""
_ROUTED = (
    ".experts", ".moe.", ".block_sparse_moe.input_linear", ".block_sparse_moe.output_linear",
)  # fmt: skip
"""Parts of the names of routed experts' matrices; Step 3.5 and Granite have no `experts` in them.
"""
_LOOKED_UP = ("embed_tokens", "embeddings", "word_embeddings", "wte", "conv1d")
"""Matrices that are not linear layers: they are quantised only if a file names them."""
_BUILT_PLAIN = (
    "weights_proj", "hc_attn_fn", "hc_ffn_fn", "hc_head_fn",
    "self_attention_res_proj", "mlp_res_proj", "output_attn_res_proj",
    "routed_expert_down_proj", "routed_expert_up_proj",
)  # fmt: skip
"""Matrices that engines build unquantised: of DeepSeek's indexer and hyper connections (and all of
its compressors'), and of Kimi K3's residuals and the latent of its experts. Source: attention.py,
compressor.py and nvidia/model.py of
deepseek_v4, nvidia/model.py and nvidia/low_latency_gemm.py:143-205 of kimi_k3, in vllm 0.33.0;
sglang 0.5.23, sglang/srt/models/kimi_k3.py:653-681."""
_MOST_NAMES = 20_000
_LONGEST = 200


class StoredPrecision(Struct, frozen=True, kw_only=True):
    """How the matrices of a checkpoint are stored and multiplied.

    `file` is the config.json. `plain` is the dtype of unquantised weights, `kv` that of the cache
    if a file gives it. `refusals` say why products are not known, although the storage of weights
    is.
    """

    file: str
    plain: Dtype
    quantised: Quantised = Quantised()

    @property
    def kv(self) -> Dtype | None:
        """The dtype of the cache, None if no file gives it."""
        return self.quantised.kv

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The reasons why no forward is known, although the storage of weights is."""
        return self.quantised.refusals

    @property
    def of_experts_alone(self) -> bool:
        """Whether routed experts are all that the method quantises."""
        quantised = self.quantised
        return bool(quantised.routed) and not (quantised.others or quantised.named)

    def of(self, name: str, *numbers: Sequence[int]) -> Scheme:
        """Return the scheme of a matrix, or of several matrices that have the same scheme.

        Parameters
        ----------
        name
            The name in the checkpoint, without `.weight`, such as
            `model.layers.0.self_attn.q_proj`. The n-th `*` stands for each of the n-th `numbers`.
        numbers
            Numbers, such as those of layers, for each `*` of the name.

        Raises
        ------
        RefusedError
            The matrices differ; or as for `each`.
        """
        counts = self.each(name, *numbers)
        if len(counts) != 1:
            shown = ", ".join(f"{count} are {scheme.weights}" for scheme, count in counts.items())
            raise self._refused(f"stores the matrices {name} differently: {shown}", _ALIKE)
        return next(iter(counts))

    def each(self, name: str, *numbers: Sequence[int]) -> dict[Scheme, int]:
        """Return the number of matrices of a name by scheme; the arguments are those of `of`.

        Raises
        ------
        RefusedError
            A file gives a matrix two schemes, engines differ on whether a list names it, the file
            does not say whether the LM head is quantised, the layers have another name in the file,
            or the lists distinguish more than 20,000 matrices.
        """
        self._check_root(name)
        modules = [part.rpartition(".")[0] for part in name.split("*")]
        distinct = [
            axis if self._tell_apart(module) else axis[:1]
            for module, axis in zip(modules, numbers, strict=False)
        ]
        if prod(map(len, distinct)) > _MOST_NAMES or len(name) > _LONGEST:
            raise self._refused(f"distinguishes too many matrices {name:.80}", _ALIKE)
        counts = Counter(self._one(_filled(name, chosen)) for chosen in product(*distinct))
        multiplicity = prod(map(len, numbers)) // (prod(map(len, distinct)) or 1)
        return {scheme: count * multiplicity for scheme, count in counts.items()}

    def fitting(self, name: str, inputs: int, *numbers: Sequence[int]) -> dict[Scheme, int]:
        """Return what `each` returns; RefusedError if groups do not divide the matrices' inputs.

        Blocks of float8_block need not divide them: the last block may be partial.
        """
        counts = self.each(name, *numbers)
        for scheme in counts:
            if scheme.group and scheme.weights != "float8_block" and inputs % scheme.group:
                raise self._refused(
                    f"has groups of {scheme.group}, which do not divide the {inputs} inputs of "
                    f"{name}",
                    "Compare the widths and the group size with the published config.json",
                )
        return counts

    def drafts_plain(self, layers: int) -> bool:
        """Return whether the MTP layer, which follows the `layers` others, is left unquantised."""
        ignored = self.quantised.ignored
        modules = [f"{root}layers.{layers}" for root in (*ignored.roots, "model.")]
        modules += ["mtp.0", "mtp.layers.0"]
        return any(ignored.covers(f"{module}.layer") for module in modules)

    def _one(self, name: str) -> Scheme:
        """Return the scheme of the matrix with a full name."""
        quantised = self.quantised
        if self._names(quantised.ignored, name):
            return self._plain_scheme
        named = {scheme for names, scheme in quantised.named if self._names(names, name)}
        if len(named) > 1:
            raise self._refused(f"gives {name} {len(named)} schemes", "Leave one of them out")
        if named:
            return named.pop()
        scheme, is_quantised = quantised.others, self._by_default(name)
        if is_quantised and any(part in name for part in _ROUTED):
            scheme, is_quantised = quantised.routed or scheme, quantised.experts
        if scheme is None or is_quantised is False:
            return self._plain_scheme
        if is_quantised is None:
            raise self._refused(
                f"does not say whether {name} is quantised, and engines differ",
                "Name it in the list of what is quantised or is not, or give another checkpoint",
            )
        return scheme

    def _by_default(self, name: str) -> bool | None:
        """Return whether a matrix that no list names is quantised, None if engines differ."""
        leaf = name.rpartition(".")[2]
        is_router = not {*name.split(".")[-2:]}.isdisjoint(_ROUTERS)
        if is_router or leaf in (*_LOOKED_UP, *_BUILT_PLAIN) or "norm" in leaf:
            return False
        return self.quantised.head if leaf in _HEADS else ".compressor." not in name

    def _names(self, names: Names, name: str) -> bool:
        if names.covers(name):
            return True
        doubt = names.doubt(name)
        if doubt:
            raise self._refused(
                f"lists {doubt!r:.120}, which names {name} only for some engines",
                "List the full names of matrices",
            )
        return False

    def _lists(self) -> list[Names]:
        return [self.quantised.ignored, *(names for names, _ in self.quantised.named)]

    def _tell_apart(self, module: str) -> bool:
        return any(names.tell_apart(module) for names in self._lists())

    def _check_root(self, name: str) -> None:
        """Refuse a name whose layers have another prefix than in the file's lists."""
        list_roots = {list_root for names in self._lists() for list_root in names.roots}
        own_root = root(name)
        if own_root is not None and list_roots and own_root not in list_roots:
            listed = " and ".join(f"{list_root}layers" for list_root in sorted(list_roots))
            raise self._refused(
                f"lists {listed}, but the matrix is {name}", "Use the checkpoint's names"
            )

    @property
    def _plain_scheme(self) -> Scheme:
        return Scheme(weights=self.plain, activations=self.plain, bits=FORMATS[self.plain].bits)

    def _refused(self, reason: str, remedy: str) -> RefusedError:
        return RefusedError([Refusal(self.file, "", reason, remedy)])


_ALIKE = "Give a model whose layers are all stored in the same format"


def _filled(name: str, numbers: tuple[int, ...]) -> str:
    """Return a name with a number in place of each `*`."""
    first, *others = name.split("*")
    pairs = zip(numbers, others, strict=True)
    return first + "".join(f"{number}{other}" for number, other in pairs)
