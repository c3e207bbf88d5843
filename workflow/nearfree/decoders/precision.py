"""Precision: how a checkpoint's matrices are stored and multiplied, from the files that say it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from nearfree.core.precision import FORMATS, PLAIN, Dtype
from nearfree.decoders.config_file import config_file, dtype_key
from nearfree.decoders.gguf_config import read_values
from nearfree.decoders.keys import Keys, read_object
from nearfree.decoders.names import Names, root
from nearfree.decoders.quantisation import METHODS, method_of, read_quantised
from nearfree.decoders.quantised import Quantised
from nearfree.decoders.schemes import Scheme, scheme, weight_only
from nearfree.errors import ConfigError, Refusal, Refusals, RefusedError

_SECTIONS = ("quantization_config", "compression_config")
_BESIDE = "hf_quant_config.json"
_UNREAD = ("quantize_config.json", "quant_config.json")
"""Files of GPTQ and AWQ that say what config.json does not."""
FILES = ("config.json", _BESIDE, *_UNREAD)
"""What is read of a model's folder, or looked for."""
_TEXT = ("text_config", "llm_config", "thinker_config")

_HEADS = ("lm_head", "head")
_ROUTERS = ("gate", "router", "shared_expert_gate")
"""Engines build these, and what is in them (`gate.wg`, `router.layer`), without a quantisation and
quantisers leave them out; a file that stores them otherwise names them. Source: the models of vllm
0.33.0, where qwen3_moe.py alone passes one, whose files leave the gates out."""
_ROUTED = (
    ".experts", ".moe.", ".block_sparse_moe.input_linear", ".block_sparse_moe.output_linear",
)  # fmt: skip
"""What names of routed experts' matrices hold: Step 3.5 and Granite have no part `experts`."""
_LOOKED_UP = ("embed_tokens", "embeddings", "word_embeddings", "wte", "conv1d")
"""No products of a linear layer: quantised only where a file names them."""
_BUILT_PLAIN = (
    "weights_proj", "hc_attn_fn", "hc_ffn_fn", "hc_head_fn",
    "self_attention_res_proj", "mlp_res_proj", "output_attn_res_proj",
    "routed_expert_down_proj", "routed_expert_up_proj",
)  # fmt: skip
"""Of DeepSeek's indexer and hyper connections, so are all of its compressors'; of Kimi K3's
residuals and the latent of its experts. Source: attention.py, compressor.py and nvidia/model.py of
deepseek_v4, nvidia/model.py and nvidia/low_latency_gemm.py:143-205 of kimi_k3, in vllm 0.33.0;
sglang 0.5.23, sglang/srt/models/kimi_k3.py:653-681."""
_V4, _OF_ENTRIES = "deepseek_v4", ("deepseek_v4", "deepseek_ref")
"""DeepSeek V4 by its names, whose cache engines keep in FP8 unless they are told otherwise: vllm
0.32.0, vllm/models/deepseek_v4/attention.py:107-121 (FlashMLA's layout takes no other)."""
_MOST_NAMES = 20_000
_LONGEST = 200


class StoredPrecision(Struct, frozen=True, kw_only=True):
    """How the matrices of a checkpoint are stored and multiplied.

    `plain` is what is stored in where nothing is quantised, `kv` what the cache holds where a file
    says it. `file` is the config.json. `refusals` say what is not known of the products: how the
    weights are stored is known all the same.
    """

    file: str
    plain: Dtype
    quantised: Quantised = Quantised()

    @property
    def kv(self) -> Dtype | None:
        """The dtype of the cache, None where no file says it."""
        return self.quantised.kv

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Why no forward is known, though it is how weights are stored."""
        return self.quantised.refusals

    def of(self, name: str, *numbers: Sequence[int]) -> Scheme:
        """Return the scheme of a matrix, or of several that have the same.

        Parameters
        ----------
        name
            In the checkpoint, without `.weight`, such as `model.layers.0.self_attn.q_proj`. A `*`
            stands for each of the numbers in its place among `numbers`, such as those of layers.

        Raises
        ------
        RefusedError
            The matrices differ; or as `each` does.
        """
        found = self.each(name, *numbers)
        if len(found) != 1:
            shown = ", ".join(f"{count} are {scheme.weights}" for scheme, count in found.items())
            raise self._refused(f"stores the matrices {name} differently: {shown}", _ALIKE)
        return next(iter(found))

    def each(self, name: str, *numbers: Sequence[int]) -> dict[Scheme, int]:
        """Return how many of the matrices of a name have each scheme; `of` says what a name is.

        Raises
        ------
        RefusedError
            A file names a matrix in two schemes, engines differ on whether a list has it, the LM
            head is not spoken of, the layers have another name in the file, or the lists tell
            more than 20,000 matrices apart.
        """
        self._check_root(name)
        words = [part.rpartition(".")[0] for part in name.split("*")]
        asked = [
            each if self._tell_apart(word) else each[:1]
            for word, each in zip(words, numbers, strict=False)
        ]
        if prod(map(len, asked)) > _MOST_NAMES or len(name) > _LONGEST:
            raise self._refused(f"tells too many matrices {name:.80} apart", _ALIKE)
        found = Counter(self._one(_filled(name, chosen)) for chosen in product(*asked))
        times = prod(map(len, numbers)) // (prod(map(len, asked)) or 1)
        return {scheme: count * times for scheme, count in found.items()}

    def fitting(self, name: str, inputs: int, *numbers: Sequence[int]) -> dict[Scheme, int]:
        """Return what `each` does, of matrices whose inputs groups divide: RefusedError if not.

        Blocks of float8_block need not: the last is a part of one.
        """
        found = self.each(name, *numbers)
        for each in found:
            if each.group and each.weights != "float8_block" and inputs % each.group:
                raise self._refused(
                    f"has groups of {each.group}, which do not divide the {inputs} inputs of "
                    f"{name}",
                    "Compare the widths and the group size with the published config.json",
                )
        return found

    def drafts_plain(self, layers: int) -> bool:
        """Return whether what is left out has the layer for further tokens, behind the others."""
        ignored = self.quantised.ignored
        starts = [f"{each}layers.{layers}" for each in (*ignored.roots, "model.")]
        return any(ignored.covers(f"{each}.layer") for each in (*starts, "mtp.0", "mtp.layers.0"))

    def _one(self, name: str) -> Scheme:
        said = self.quantised
        if self._names(said.ignored, name):
            return self._plain
        found = {scheme for names, scheme in said.named if self._names(names, name)}
        if len(found) > 1:
            raise self._refused(f"gives {name} {len(found)} schemes", "Leave one of them out")
        if found:
            return found.pop()
        stored, among = said.others, self._among(name)
        if among and any(part in name for part in _ROUTED):
            stored, among = said.routed or stored, said.experts
        if stored is None or among is False:
            return self._plain
        if among is None:
            raise self._refused(
                f"does not say whether {name} is quantised, and engines differ",
                "Name it in the list of what is quantised or is not, or give another checkpoint",
            )
        return stored

    def _among(self, name: str) -> bool | None:
        """Return whether a matrix that no file names is among all others, None if unknown."""
        leaf = name.rpartition(".")[2]
        router = not {*name.split(".")[-2:]}.isdisjoint(_ROUTERS)
        if router or leaf in (*_LOOKED_UP, *_BUILT_PLAIN) or "norm" in leaf:
            return False
        return self.quantised.head if leaf in _HEADS else ".compressor." not in name

    def _names(self, names: Names, name: str) -> bool:
        if names.covers(name):
            return True
        doubt = names.doubt(name)
        if doubt:
            raise self._refused(
                f"lists {doubt!r:.120}, which names {name} to some engines alone",
                "List the whole names of matrices",
            )
        return False

    def _lists(self) -> list[Names]:
        return [self.quantised.ignored, *(names for names, _ in self.quantised.named)]

    def _tell_apart(self, module: str) -> bool:
        return any(names.tell_apart(module) for names in self._lists())

    def _check_root(self, name: str) -> None:
        roots = {each for names in self._lists() for each in names.roots}
        mine = root(name)
        if mine is not None and roots and mine not in roots:
            theirs = " and ".join(f"{each}layers" for each in sorted(roots))
            raise self._refused(
                f"names {theirs}, and {name} is asked for", "Ask by the checkpoint's names"
            )

    @property
    def _plain(self) -> Scheme:
        return Scheme(weights=self.plain, activations=self.plain, bits=FORMATS[self.plain].bits)

    def _refused(self, reason: str, remedy: str) -> RefusedError:
        return RefusedError([Refusal(self.file, "", reason, remedy)])


_ALIKE = "Ask for each layer alone, or give a model whose layers are stored alike"


def _filled(name: str, numbers: tuple[int, ...]) -> str:
    first, *others = name.split("*")
    pairs = zip(numbers, others, strict=True)
    return first + "".join(f"{number}{other}" for number, other in pairs)


def read_precision(path: Path) -> StoredPrecision:
    """Return how a checkpoint is stored, from its config.json and hf_quant_config.json beside it.

    Parameters
    ----------
    path
        The config.json, or the folder that holds it.

    Raises
    ------
    ConfigError
        A file cannot be read.
    RefusedError
        With every reason: a method of quantisation is not read, a value is none that engines take,
        sections differ, or no file says in what the rest is stored.
    """
    file = config_file(path)
    values = read_values(file)
    keys, found = Keys(file, values), Refusals()
    sections = list[Keys]()
    with found.collect():
        sections = [*_sections(file, values), *_beside(file)]
    _check_elsewhere(keys, sections, found)
    plain: Dtype = "bfloat16"
    with found.collect():
        plain = _plain(keys, sections)
    said = list[tuple[Keys, Quantised]]()
    for section in sections:
        with found.collect():
            said.append((section, read_quantised(section, plain)))
    quantised = said[0][1] if said else Quantised()
    beside = list[Refusal]()
    for section, other in said[1:]:
        first = quantised.beside or quantised if section.path != file else quantised
        differ = _differ(first, other)
        if differ:
            what = ", ".join(_PARTS[part] for part in differ)
            why = f"differs from {said[0][0].path.name} in {what}"
            error = section.wrong("quant_algo", why, "Leave out the section that is wrong")
            if differ == ["kv"]:
                error = section.wrong(CACHE, why, _NAME_CACHE)
            if _differ(_as_stored(first), _as_stored(other)):
                found.add(error)
            beside += error.refusals
        beside += other.refusals
    with found.collect():
        quantised = _experts(keys, sections, quantised)
    found.check()
    kv = _widest([quantised.kv, *(other.kv for _, other in said[1:])])
    if kv is None and any(keys.is_text("model_type", each) for each in _OF_ENTRIES):
        kv = "float8"
    refusals = tuple(dict.fromkeys([*quantised.refusals, *beside]))
    quantised = structs.replace(quantised, kv=kv, refusals=refusals)
    return StoredPrecision(file=str(file), plain=plain, quantised=quantised)


CACHE = "kv_cache_quant_algo"
"""The end of the key of a refusal that naming the format of the cache settles."""
_NAME_CACHE = (
    "Name it, such as --kv-dtype float8: vLLM takes what config.json says, SGLang this file where "
    "algorithms are mixed and that says nothing of it"
)


def _differ(one: Quantised, other: Quantised) -> list[str]:
    return [part for part in _PARTS if getattr(one, part) != getattr(other, part)]


def _as_stored(said: Quantised) -> Quantised:
    """Return what is said of the weights alone, without their products and the cache."""
    return structs.replace(
        said,
        kv=None,
        others=said.others and weight_only(said.others),
        routed=said.routed and weight_only(said.routed),
        named=tuple((names, weight_only(each)) for names, each in said.named),
    )


def _widest(caches: list[Dtype | None]) -> Dtype | None:
    """Return what takes most where files differ on the cache; None, the plain dtype, is first."""
    return (
        None if None in caches else max(caches, key=lambda each: FORMATS[str(each)].element_bytes)
    )


def _experts(keys: Keys, sections: list[Keys], quantised: Quantised) -> Quantised:
    """Return what is said with `expert_dtype`, in which DeepSeek V4 stores its routed experts.

    fp4 is MXFP4, whose products have MXFP8 activations. Source: DeepseekV4FP8Config of vllm 0.33.0.
    """
    levels = [level for level in (keys, *map(keys.inner, _TEXT)) if level.has("expert_dtype")]
    fp8 = bool(sections) and method_of(sections[0]) == "fp8"
    v4 = keys.is_text("model_type", _V4)
    if fp8 and quantised.routed and not v4:
        raise sections[0].wrong("moe_quant_algo", "is not read for this model type", _PUBLISHED)
    if not levels:
        if fp8 and v4:
            raise keys.wrong("expert_dtype", "is missing, and engines take fp4 for it", _EXPERTS)
        return quantised
    level = levels[0]
    if not (fp8 and v4):
        raise level.wrong("expert_dtype", "stores experts apart from the rest", _PUBLISHED)
    if level.text("expert_dtype") not in ("fp4", "fp8"):
        raise level.wrong("expert_dtype", "is none of fp4, fp8")
    if level.is_text("expert_dtype", "fp8"):
        if quantised.routed:
            raise level.wrong("expert_dtype", "stands beside moe_quant_algo")
        return quantised
    routed = quantised.routed or scheme("mxfp4", "float8", group=32)
    return structs.replace(quantised, routed=routed)


_EXPERTS = "Add fp4 or fp8, as the checkpoint's experts are stored"
_PARTS = {
    "kv": "the dtype of the cache",
    "others": "the scheme",
    "routed": "the scheme of experts",
    "named": "the schemes by name",
    "ignored": "what is left out",
    "head": "the LM head",
    "experts": "whether experts are quantised",
}


def _sections(file: Path, values: dict[str, Any]) -> Iterator[Keys]:
    """Return the sections on quantisation, at whatever level they stand."""
    levels = [("", values)]
    for within, level in levels:
        for key, value in level.items():
            if key in _SECTIONS and value is not None:
                yield Keys(file, level, within).inner(key)
            elif isinstance(value, dict):
                levels.append((f"{within}{key}.", value))


def _beside(file: Path) -> Iterator[Keys]:
    """Return ModelOpt's section out of hf_quant_config.json, if that is there.

    Source: convert_hf_config.py of modelopt 0.40.0.
    """
    beside = file.with_name(_BESIDE)
    if beside.exists() or beside.is_symlink():
        try:
            keys = Keys(beside, read_object(beside))
        except ConfigError as error:
            reason = error.what.removeprefix(f"{beside} ")
            remedy = "Give ModelOpt's own file, or take it away if nothing is quantised"
            raise RefusedError([Refusal(str(beside), "", reason, remedy)]) from error
        if not keys.has("quantization"):
            raise keys.wrong("quantization", "is missing", "Give ModelOpt's own file")
        yield keys.inner("quantization")


def _check_elsewhere(keys: Keys, sections: list[Keys], found: Refusals) -> None:
    """Refuse what says that weights are quantised in a place that is not read."""
    if keys.has("quantization"):
        found.add(keys.wrong("quantization", "is a section that is not read", _PUBLISHED))
    for name in _UNREAD:
        other = keys.path.with_name(name)
        if not sections and other.exists():
            reason = "says that weights are quantised, and config.json does not"
            remedy = "Write what it says as quantization_config into config.json"
            found.add(RefusedError([Refusal(str(other), "", reason, remedy)]))


_PUBLISHED = "Give a checkpoint whose quantization_config says all of it"


def _plain(keys: Keys, sections: list[Keys]) -> Dtype:
    """Return in what a file says that the model is stored, where it is not quantised."""
    said, parts = dict[str, Keys](), [keys.inner(part) for part in _TEXT]
    for level in (keys, *parts, parts[-1].inner("text_config")):
        for key in ("dtype", "torch_dtype"):
            if level.has(key):
                dtype = level.text(key)
                if dtype not in PLAIN:
                    raise level.wrong(key, f"is none of {', '.join(PLAIN)}")
                said[dtype] = level
    if len(said) > 1:
        raise keys.wrong("dtype", f"differs between levels: {', '.join(said)}", "Leave one out")
    usual = {METHODS[method_of(section)].usual for section in sections}
    dtypes = {*said} or usual - {None}
    if not dtypes:
        dtype_key(keys)
    return next(dtype for dtype in PLAIN if dtype in dtypes)
