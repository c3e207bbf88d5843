"""A deployments.yaml that cannot be answered ends in one line that names file and entry."""

from pathlib import Path

import pytest

from cli.conftest import Call
from cli.test_mistakes import folder_content, one_message

REQUIRED = "platforms: [h20], models: [qwen3_8b]"
NAMED = f"{REQUIRED}, attention: [flash-attn==2.8.3]"
MANY = f"[{', '.join(map(str, range(1, 200)))}]"
ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a]\nc: {models: [*b, *b]}"


@pytest.mark.parametrize(
    ("text", "thing"),
    [
        (f"a: {{{REQUIRED}, attention: [<script>alert(1)</script>]}}", "<script>"),
        (f'a: {{{REQUIRED}, attention: ["flash-attn\\n==2.8.3"]}}', "\\n"),
        (f'a: {{{NAMED}, moe: ["\\e[31mvllm"]}}', "\\x1b"),
        (f"a: {{{NAMED}, moe: [flash-attn]}}", "flash_attn runs no experts"),
        (f"a: {{{REQUIRED}, attention: [vllm]}}", "vllm runs no attention"),
        (f"a: {{{NAMED}, batch: {MANY}, context: {MANY}}}", "39601 deployments"),
        (f"a: {{{NAMED}, batch: {MANY}, context: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}", "512 N"),
        ("a: {platforms: [h20], models: [../../../etc/passwd]}", "passwd"),
        ("a: {platforms: [h20], models: [.]}", "a: "),
        ("a: {platforms: [h20], models: [deployments.yaml]}", "deployments.yaml"),
        ("a: {platforms: [h20], models: ['\u202eqwen3_8b']}", "a: "),
        (ALIAS_BOMB, "a"),
    ],
)
def test_a_bad_deployment_is_refused_in_one_line(
    call: Call, project: Path, text: str, thing: str
) -> None:
    """Any mistake is refused with exit code 2 before a table is written."""
    (project / "config" / "deployments.yaml").write_text(text, encoding="utf-8")
    before = folder_content(project)
    answer = call("tables", "outlook", "public")
    one_message(answer, "config/deployments.yaml")
    assert thing in answer[2]
    assert len(answer[2]) < 1000
    assert answer[2].removesuffix("\n").isprintable()
    assert folder_content(project) == before
