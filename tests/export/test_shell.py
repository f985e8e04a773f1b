"""Lines and scripts for shells: bash runs them, and each word arrives unchanged."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings

from launcher.export import quoting, shell
from launcher.export.recipe import ExportRecipe
from tests.export.conftest import KEY, NASTY, recipe_with, words

PRINTER = ("/usr/bin/printf", "%s\\0")


def run_bash(text: str, **environment: str) -> list[str]:
    result = subprocess.run(
        ["/bin/bash", "-c", text], capture_output=True, check=False, env={"PATH": os.environ["PATH"], **environment}
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(words, words, words)
def test_bash_reads_every_word_back(one: str, two: str, three: str) -> None:
    recipe = recipe_with(one, two, three, program=PRINTER)
    assert run_bash(shell.bash_command(recipe), LLAMA_API_KEY="k") == recipe.build_arguments()
    assert run_bash(shell.bash_script(recipe), LLAMA_API_KEY="k") == recipe.build_arguments()


def test_a_line_stays_one_line_for_all_names() -> None:
    assert shell.bash_command(recipe_with("a\nb\rc\u2028d", "x\n")).count("\n") == 1


def test_the_key_is_in_the_text_on_request_only() -> None:
    recipe = recipe_with(NASTY, program=("/usr/bin/env",))
    for render in (shell.bash_command, shell.bash_script, shell.powershell_command, shell.powershell_script):
        assert KEY not in render(recipe)
        assert KEY in render(recipe_with(NASTY, api_key=KEY))


def test_without_a_key_the_script_starts_nothing(tmp_path: Path) -> None:
    recipe = recipe_with("m", program=PRINTER)
    for text in (shell.bash_command(recipe), shell.bash_script(recipe)):
        result = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, env={"HOME": str(tmp_path)})
        assert result.returncode != 0
        assert not result.stdout
        assert "key" in result.stderr


def test_the_script_reads_the_key_from_a_file_and_hides_it_from_the_process_list(tmp_path: Path) -> None:
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf "%s\\0" "$LLAMA_API_KEY" "${LLAMA_ARG_HOST-none}" "$XDG_CONFIG_HOME" "$@"\n')
    show.chmod(0o755)
    key = tmp_path / "key file"
    key.write_text(f"{KEY}\n")
    recipe = recipe_with("m", program=(str(show),))
    got = run_bash(shell.bash_script(recipe), LLAMA_API_KEY_FILE=str(key), LLAMA_ARG_HOST="0.0.0.0")
    assert got[:3] == [KEY, "none", "/var/empty"]
    assert KEY not in got[3:]


def test_bash_accepts_the_syntax_of_the_script(recipe: ExportRecipe) -> None:
    assert subprocess.run(["/bin/bash", "-n", "-c", shell.bash_script(recipe)], check=False).returncode == 0


def read_powershell(line: str) -> list[str]:
    """Read literal strings and bare words as PowerShell does (about_Quoting_Rules)."""
    quote = "['\u2018\u2019\u201a\u201b]"
    found = re.findall(rf"{quote}((?:[^'\u2018\u2019\u201a\u201b]|{quote}{{2}})*){quote}|(\S+)", line)
    return [bare or re.sub(rf"({quote}){quote}", r"\1", text) for text, bare in found]


@settings(max_examples=200, deadline=None)
@given(words, words)
def test_powershell_literals_are_read_back(one: str, two: str) -> None:
    recipe = recipe_with(one, two)
    argv = [*recipe.program, *recipe.build_arguments()]
    line = quoting.quote_powershell_line(argv)
    got = read_powershell(line)
    if line.startswith("Start-Process"):
        place = got.index("-ArgumentList")
        assert got[place - 1] == argv[0]
        assert split_by_the_c_runtime(got[place + 1]) == argv[1:]
    else:
        assert got == ["&", *argv]


def split_by_the_c_runtime(line: str) -> list[str]:
    """Split as Windows programs do ("Parsing C command-line arguments")."""
    words_found: list[str] = []
    word, quoted, place, begun = "", False, 0, False
    while place < len(line):
        slashes = len(line[place:]) - len(line[place:].lstrip("\\"))
        place += slashes
        following = line[place : place + 1]
        if following == '"':
            word += "\\" * (slashes // 2)
            begun = True
            if slashes % 2:
                word += '"'
            else:
                quoted = not quoted
            place += 1
            continue
        word += "\\" * slashes
        begun = begun or slashes > 0
        if not following:
            break
        if following in " \t" and not quoted:
            if begun:
                words_found.append(word)
            word, begun = "", False
        else:
            word, begun = word + following, True
        place += 1
    return [*words_found, word] if begun else words_found


@pytest.mark.parametrize("word", ["", 'a"b', "C:\\folder\\"])
def test_words_that_old_powershells_pass_wrongly_become_one_string(word: str) -> None:
    line = quoting.quote_powershell_line(["llama-server", "--x", word])
    assert line.startswith("Start-Process ")
    assert "exit (Start-Process" in shell.powershell_script(recipe_with('a"b'))


def test_plain_words_are_not_quoted() -> None:
    assert shlex.split(quoting.quote_bash_line(["/a/b.gguf", "--x", "1"])) == ["/a/b.gguf", "--x", "1"]
    assert quoting.quote_bash("/a/b.gguf") == "/a/b.gguf"
