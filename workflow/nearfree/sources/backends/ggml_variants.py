"""The libraries that ggml is built as for CPUs of x86-64, and how one is chosen where it runs.

A library of a variant is compiled for the features that its line names (ggml/src/CMakeLists.txt,
`ggml_add_cpu_backend_variant`), with the compiler's options for each
(ggml/src/ggml-cpu/CMakeLists.txt), and scores for each that the machine has, or not at all
(ggml-cpu/arch/x86/cpu-feats.cpp, `ggml_backend_cpu_x86_score`); the highest score is loaded.
"""

import re
from collections.abc import Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.sources.backends.ggml_text import body_of, found_in
from nearfree.sources.language.program import Text
from nearfree.sources.language.reading import Mechanism

LIST, OPTIONS = "ggml/src/CMakeLists.txt", "ggml/src/ggml-cpu/CMakeLists.txt"
SCORE = "ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp"
_ADDED = re.compile(r"^ +ggml_add_cpu_backend_variant\((\w+)((?: +\w+)*)\)$", re.MULTILINE)
_OPTION = re.compile(
    r"if \(GGML_(\w+)\)\n((?: +list\(APPEND ARCH_FLAGS -m[\w.-]+\)\n)+)"
    r" +list\(APPEND ARCH_DEFINITIONS GGML_\1\)\n +endif\(\)"
)
_SCORED = re.compile(
    r"^#ifdef GGML_(\w+)\n((?: +if \(!is\.\w+\(\)\) \{ return 0; \}\n)+)"
    r" +score \+= 1(?:<<(\d+))?;\n#endif$",
    re.MULTILINE,
)


def variants(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return the variants, and what each feature asks of a compiler and of a machine.

    Parameters
    ----------
    files
        A release's files by their paths inside of llama.cpp.
    inside
        The folder of the release that those are in.

    Raises
    ------
    SourceError
        A file is not of the known form.
    """
    for path in (LIST, OPTIONS, SCORE):
        if path not in files:
            raise SourceError(f"there is no {path}", remedy=MOVED)
    return [_variants(files[LIST], inside), *_features(files, inside)]


def _variants(content: str, inside: str) -> Mechanism:
    block, first = found_in(
        LIST,
        content,
        r'^ +if \(GGML_SYSTEM_ARCH STREQUAL "x86"\)\n(?P<added> +ggml_add_cpu_backend_variant'
        r'(?:.*\n)*?) +elseif\s*\(GGML_SYSTEM_ARCH STREQUAL "ARM"\)$',
    )
    text = Text(inside + LIST, content)
    says, quotes = [], []
    for found in _ADDED.finditer(block.group()):
        line = first + block.group().count("\n", 0, found.start())
        says.append(" ".join([found[1], *found[2].split()]))
        quotes.append(text.quote(line, line))
    if len(says) != block.group().count("ggml_add_cpu_backend_variant("):
        raise SourceError(f"{LIST}:{first} adds variants of no known form", remedy=MOVED)
    return Mechanism("variants", ", ".join(says), tuple(quotes))


def _features(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return one feature each: what it is compiled with, what a machine needs, what it scores."""
    options = {found[1]: found for found in _OPTION.finditer(files[OPTIONS])}
    body, first = body_of(SCORE, files[SCORE], r"static int ggml_backend_cpu_x86_score\(\)")
    scored = list(_SCORED.finditer(body))
    if not scored or len(scored) != body.count("score +=") or "int score = 1;" not in body:
        raise SourceError(f"{SCORE}:{first} scores in no known form", remedy=MOVED)
    texts = Text(inside + OPTIONS, files[OPTIONS]), Text(inside + SCORE, files[SCORE])
    found = []
    for each in scored:
        name = each[1]
        if name not in options:
            raise SourceError(f"{OPTIONS} has no options for {name}", remedy=MOVED)
        flags = re.findall(r" -m([\w.-]+)\)", options[name][2])
        needs = re.findall(r"!is\.(\w+)\(", each[2])
        at = 1 + files[OPTIONS].count("\n", 0, options[name].start())
        line = first + body.count("\n", 0, each.start())
        quotes = (
            texts[0].quote(at, at + options[name].group().count("\n")),
            texts[1].quote(line, line + each.group().count("\n")),
        )
        says = f"{' '.join(flags)}; {' '.join(needs)}; {1 << int(each[3] or 0)}"
        found.append(Mechanism(f"feature_{name}", says, quotes))
    return found
