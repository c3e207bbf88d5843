"""ggml's library variants for x86-64 CPUs, and the selection among them at run time.

A variant is compiled for the features that its line names (ggml/src/CMakeLists.txt,
`ggml_add_cpu_backend_variant`), with the compiler's options for each feature
(ggml/src/ggml-cpu/CMakeLists.txt). At run time each feature that the machine has adds to the
variant's score; a missing one makes the score 0 (ggml-cpu/arch/x86/cpu-feats.cpp,
`ggml_backend_cpu_x86_score`). The variant with the highest score is loaded.
"""

import re
from collections.abc import Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.sources.backends.ggml_text import body_of, only_match
from nearfree.sources.language.program import Text
from nearfree.sources.language.reading import Mechanism

LIST, OPTIONS = "ggml/src/CMakeLists.txt", "ggml/src/ggml-cpu/CMakeLists.txt"
SCORE = "ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp"
_VARIANT_LINE = re.compile(r"^ +ggml_add_cpu_backend_variant\((\w+)((?: +\w+)*)\)$", re.MULTILINE)
_OPTION_BLOCK = re.compile(
    r"if \(GGML_(\w+)\)\n((?: +list\(APPEND ARCH_FLAGS -m[\w.-]+\)\n)+)"
    r" +list\(APPEND ARCH_DEFINITIONS GGML_\1\)\n +endif\(\)"
)
_SCORE_BLOCK = re.compile(
    r"^#ifdef GGML_(\w+)\n((?: +if \(!is\.\w+\(\)\) \{ return 0; \}\n)+)"
    r" +score \+= 1(?:<<(\d+))?;\n#endif$",
    re.MULTILINE,
)


def variants(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return the variants, and each feature's compiler options, CPU tests and score.

    Parameters
    ----------
    files
        A release's files by their paths in llama.cpp.
    inside
        The folder of the release that contains llama.cpp.
    """
    for path in (LIST, OPTIONS, SCORE):
        if path not in files:
            raise SourceError(f"there is no {path}", remedy=MOVED)
    return [_variants(files[LIST], inside), *_features(files, inside)]


def _variants(content: str, inside: str) -> Mechanism:
    block, first = only_match(
        LIST,
        content,
        r'^ +if \(GGML_SYSTEM_ARCH STREQUAL "x86"\)\n(?P<added> +ggml_add_cpu_backend_variant'
        r'(?:.*\n)*?) +elseif\s*\(GGML_SYSTEM_ARCH STREQUAL "ARM"\)$',
    )
    text = Text(inside + LIST, content)
    entries, quotes = [], []
    for addition in _VARIANT_LINE.finditer(block.group()):
        line = first + block.group().count("\n", 0, addition.start())
        entries.append(" ".join([addition[1], *addition[2].split()]))
        quotes.append(text.quote(line, line))
    if len(entries) != block.group().count("ggml_add_cpu_backend_variant("):
        raise SourceError(f"{LIST}:{first} adds variants in an unknown form", remedy=MOVED)
    return Mechanism("variants", ", ".join(entries), tuple(quotes))


def _features(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return each feature's compiler options, CPU tests and score."""
    options = {option[1]: option for option in _OPTION_BLOCK.finditer(files[OPTIONS])}
    body, first = body_of(SCORE, files[SCORE], r"static int ggml_backend_cpu_x86_score\(\)")
    scored = list(_SCORE_BLOCK.finditer(body))
    if not scored or len(scored) != body.count("score +=") or "int score = 1;" not in body:
        raise SourceError(f"{SCORE}:{first} scores in an unknown form", remedy=MOVED)
    texts = Text(inside + OPTIONS, files[OPTIONS]), Text(inside + SCORE, files[SCORE])
    mechanisms = []
    for score in scored:
        name = score[1]
        if name not in options:
            raise SourceError(f"{OPTIONS} has no options for {name}", remedy=MOVED)
        flags = re.findall(r" -m([\w.-]+)\)", options[name][2])
        needs = re.findall(r"!is\.(\w+)\(", score[2])
        options_line = 1 + files[OPTIONS].count("\n", 0, options[name].start())
        line = first + body.count("\n", 0, score.start())
        quotes = (
            texts[0].quote(options_line, options_line + options[name].group().count("\n")),
            texts[1].quote(line, line + score.group().count("\n")),
        )
        statement = f"{' '.join(flags)}; {' '.join(needs)}; {1 << int(score[3] or 0)}"
        mechanisms.append(Mechanism(f"feature_{name}", statement, quotes))
    return mechanisms
