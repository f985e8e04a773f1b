"""`mtp-launcher completion`: its scripts in the shell that every test machine has. In the others: .ci/completion."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_pwsh

from launcher import __version__
from launcher.cli.main import VERBS, build_full_parser
from launcher.cli.subparsers import iterate_parsers, list_actions
from tests.cli import in_process


def completion_script(kind: str) -> str:
    result = in_process.run("completion", kind)
    assert result.returncode == 0
    return result.stdout


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "mtp-launcher"
    path.write_text(completion_script("bash"))
    return path


def complete_word(script: Path, *words: str, folder: Path = Path("/")) -> set[str]:
    """Return what bash offers for the last word, by the function that the script registers."""
    code = f"""
        source {shlex.quote(str(script))}
        COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
        [[ $(complete -p mtp-launcher) =~ -F\\ ([^ ]+) ]]
        ${{BASH_REMATCH[1]}} 2>/dev/null
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "--noprofile", "-c", code]
    return set(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split("\n")) - {
        ""
    }


def test_bash_completes_verbs_options_choices_models_and_files(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "my.gguf").touch()
    (tmp_path / "folder").mkdir()
    assert complete_word(bash_script, "mtp-launcher", "") == set(VERBS)
    assert complete_word(bash_script, "mtp-launcher", "ser") == {"serve"}
    assert {"--ctx", "--kv"} <= complete_word(bash_script, "mtp-launcher", "serve", "--")
    assert complete_word(bash_script, "mtp-launcher", "gui", "--theme", "d") == {"dark"}
    assert complete_word(bash_script, "mtp-launcher", "engine", "rol") == {"rollback"}
    assert complete_word(bash_script, "mtp-launcher", "serve", "qwen3.6-35b-a3b-m") == {"qwen3.6-35b-a3b-mtp"}
    assert complete_word(bash_script, "mtp-launcher", "serve", "my", folder=tmp_path) == {"my.gguf"}
    assert complete_word(bash_script, "mtp-launcher", "pull", "x", "--to", "f", folder=tmp_path) == {"folder"}


def test_powershell_parses_its_script() -> None:
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_pwsh.language()))
    assert not parser.parse(completion_script("powershell").encode()).root_node.has_error


def test_each_script_has_every_verb() -> None:
    for shell in ("zsh", "fish"):
        script = completion_script(shell)
        assert [verb for verb in VERBS if verb not in script] == []


def test_the_manual_page_has_each_command_with_its_options() -> None:
    page = completion_script("manual")
    assert page.startswith('.TH MTP\\-LAUNCHER 1 "" "MTP Launcher ' + __version__)
    plain = page.replace("\\-", "-")
    for parser in iterate_parsers(build_full_parser()):
        for option in [word for action in list_actions(parser) for word in action.option_strings]:
            assert re.search(rf"^\.B .*{re.escape(option)}\b", plain, re.MULTILINE) or option in (
                "-h",
                "--help",
                "--version",
            )
    assert [verb for verb in VERBS if f".SS mtp-launcher {verb}\n" not in plain] == []
