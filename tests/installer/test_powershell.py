"""Scripts of PowerShell: their syntax, and that install.ps1 takes the steps of install.sh. None runs here."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_pwsh

from launcher.autostart import RUN_KEY, RUN_VALUE
from launcher.updates.check import VARIABLE

INSTALLER = Path(__file__).parents[2] / "installer"
INSTALL = INSTALLER / "windows-shell" / "install.ps1"
IN_WSL = INSTALLER / "wsl" / "install-in-wsl.ps1"
SH = INSTALLER / "linux" / "install.sh"
BUILD = INSTALLER / "windows-shell" / "build-install"
STAMPED = {
    "version": "1.2.3",
    "wheel": "w.whl",
    "wheel_sha256": "a" * 64,
    "lock_sha256": "b" * 64,
    "releases": "",
    "default_index": "https://index.example/simple",
}


def parsed(text: str) -> tree_sitter.Node:
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_pwsh.language()))
    return parser.parse(text.encode()).root_node


def nodes(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def errors(text: str) -> list[int]:
    """Return the lines, from 1, on which the text is no PowerShell."""
    return [node.start_point[0] + 1 for node in nodes(parsed(text)) if node.is_error or node.is_missing]


@pytest.mark.parametrize("script", [INSTALL, IN_WSL], ids=lambda path: path.name)
def test_it_is_understood(script: Path) -> None:
    assert errors(script.read_text("ascii")) == []  # Windows PowerShell takes other letters for those of a code page


@pytest.mark.parametrize("broken", ["if ($a { 1 }", "function f { 'open }", "$x = @(1, 2"])
def test_what_is_broken_is_seen(broken: str) -> None:
    assert errors(f"$a = 1\n{broken}\n")


@pytest.mark.parametrize("script", [INSTALL, IN_WSL], ids=lambda path: path.name)
def test_each_function_that_is_called_is_there(script: Path) -> None:
    """What is no command of PowerShell's own is one of the script's, written in the same way."""
    text = script.read_text("ascii")
    made = set(re.findall(r"^function ([\w-]+)", text, re.MULTILINE))
    called = {
        node.text.decode()
        for node in nodes(parsed(text))
        if node.type == "command_name" and node.text is not None and re.fullmatch(rb"[A-Z]\w+-\w+", node.text)
    }
    theirs = {
        "Add-Type", "ForEach-Object", "Copy-Item", "Get-ChildItem", "Get-Command", "Get-FileHash", "Get-ItemProperty",
        "Get-Process", "Invoke-WebRequest", "Join-Path", "New-Item", "New-Object", "Out-Null", "Read-Host",
        "Remove-Item", "Resolve-Path", "Select-Object", "Set-ItemProperty", "Set-StrictMode", "Sort-Object",
        "Split-Path", "Test-Path", "Where-Object", "Write-Host",
    }  # fmt: skip
    assert called - theirs <= made
    assert made <= called


def of_sh(name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*?)(?: +#.*)?$", SH.read_text("utf-8"), re.MULTILINE)
    return str(found).strip("'\"")


def of_ps1(name: str) -> str:
    (found,) = re.findall(rf"^\${name} = ['\"]?(.*?)['\"]?(?: +#.*)?$", INSTALL.read_text("ascii"), re.MULTILINE)
    return str(found)


def test_it_takes_what_install_sh_takes() -> None:
    for name in ("uv_version", "pythons", "network", "room_mib"):
        assert of_ps1(name) == of_sh(name), name
    assert of_ps1("lock") == of_sh("lock") == "mtp_launcher-$version-requirements.txt"
    assert of_ps1("run_value") == RUN_VALUE
    assert of_ps1("run_key") == f"HKCU:\\{RUN_KEY}"
    assert VARIABLE in INSTALL.read_text("ascii")


def uv_commands(text: str) -> list[list[str]]:
    """Return what uv is asked in a script, in order: words, without options that name a place."""
    lines = re.sub(r"[`\\]\n\s*", "", text).splitlines()
    found = []
    for line in lines:
        asked = re.search(r"""(?:"\$uv"|& \$Uv|Invoke-Quietly \$Uv) (?!@)(.*)""", line)
        if asked:
            words = re.findall(r"--?[\w-]+|:all:|(?<![$\w-])(?:python|pip|tool|find|install|3\.13)\b|pythons", asked[1])
            found.append(words)
    return found


def test_its_steps_are_those_of_install_sh() -> None:
    theirs, ours = uv_commands(SH.read_text("utf-8")), uv_commands(INSTALL.read_text("ascii"))
    assert ours == theirs
    assert [words[:2] for words in ours] == [
        ["python", "find"], ["python", "install"], ["python", "find"], ["pip", "install"], ["tool", "install"],
    ]  # fmt: skip


def test_it_is_stamped_with_what_install_sh_is(tmp_path: Path) -> None:
    assert not any(of_ps1(name) for name in STAMPED)
    (tmp_path / "install.sh").write_text("".join(f"{name}={value}\n" for name, value in STAMPED.items()))
    subprocess.run([BUILD, tmp_path], check=True, timeout=60)
    stamped = (tmp_path / "install.ps1").read_text("ascii")
    assert errors(stamped) == []
    for name, value in STAMPED.items():
        assert f"\n${name} = '{value}'\n" in stamped
    (tmp_path / "install.sh").write_text("version=1.2.3\n")
    told = subprocess.run([BUILD, tmp_path], check=False, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "names no wheel" in told.stderr


def test_the_builder_is_understood_by_a_posix_shell() -> None:
    assert shutil.which("dash")
    subprocess.run(["dash", "-n", BUILD], check=True, timeout=60)
    subprocess.run(["shellcheck", BUILD], check=True, timeout=60)
