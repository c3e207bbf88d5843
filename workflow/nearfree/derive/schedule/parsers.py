"""Where engines read the options that are written here: package, release, file, lines, digest.

The digest is of the lines' own text: what a schedule says holds for any release where it is the
same.
"""

from msgspec import Struct


class Parser(Struct, frozen=True, kw_only=True):
    """A function, class or field of an engine, and the digest of its text.

    `lines` are those of `version`; `sha256` is of the same lines, each with its line feed.
    """

    package: str
    version: str
    file: str
    name: str
    lines: tuple[int, int]
    sha256: str

    def __str__(self) -> str:
        first, last = self.lines
        where = f"{self.package} {self.version}, {self.file} lines {first}-{last}"
        return f"{where}: {self.name}, SHA-256 {self.sha256}"


VLLM = (
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/v1/spec_decode/dynamic/utils.py",
        name="validate_and_normalize_dynamic_sd_schedule",
        lines=(7, 74),
        sha256="cef757932ff6dc294fe0aa920b4414330abe79396fb2a3cd75f5108c42be3225",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/v1/spec_decode/dynamic/utils.py",
        name="build_dynamic_sd_schedule_lookup",
        lines=(77, 148),
        sha256="227a6817c55f6a65a9d83d305c0c35ba57819a51cc5b5c81af9600a7cdbe4cb3",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/speculative.py",
        name="SpeculativeConfig.num_speculative_tokens",
        lines=(413, 413),
        sha256="a84f1f6bd54815d2d2f6b6715ab2152244e8de7c1bdd9f357929a8f54299e1ad",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/speculative.py",
        name="SpeculativeConfig.num_speculative_tokens_per_batch_size",
        lines=(524, 524),
        sha256="f04b8917d21fee61a2d7cc3f525e858311dad80a0eb43e36bf78fe2ecf08ef42",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/vllm.py",
        name="VllmConfig._maybe_disable_dynamic_sd_for_v1",
        lines=(1088, 1108),
        sha256="8b6f57f17e216b5c4b5b264123da6f06fe32920510849d69c91cf6715850762a",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/vllm.py",
        name="VllmConfig._maybe_disable_dynamic_sd_for_data_parallel",
        lines=(1110, 1127),
        sha256="f9697310aee77e7538d7ca8289116d9ff47719ba93f7bfe3a9eabcbafd3f7ee7",
    ),
)

SGLANG = (
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="_load_adaptive_config",
        lines=(103, 139),
        sha256="7e926ef54fc00034ccd07fb0676baa053a9cb3fb25e7b55305d6d336433c5148",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="adaptive_unsupported_reason",
        lines=(56, 100),
        sha256="2e315677f2a59b43fbb84d0a605668100e63658e91a9b159a46d18bdce418478",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="AdaptiveStepSlot",
        lines=(153, 272),
        sha256="97b247a052aef801ea9fd3ae41dbd9877f21732f3d1d4f576248f79597c8b7ea",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="AdaptiveSpeculativeParams",
        lines=(275, 358),
        sha256="2f60eeebe94ab6e63b464176de8def20d565f1dadc540dd0035240de4f6cfa72",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/arg_groups/speculative_hook.py",
        name="_init_adaptive_speculative_params",
        lines=(1392, 1427),
        sha256="71f4c15ae339fea542f5007bb410f461fad524765b23c7c5fd1fce0f6455cd48",
    ),
)
