"""PowerShell scripts: their syntax, and that install.ps1 has the steps of install.sh. No script is run here."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_pwsh

from launcher.app.autostart import RUN_KEY, RUN_VALUE
from launcher.updates.check import RELEASES_VARIABLE
from launcher.updates.signature import RELEASE_KEY_VARIABLE

INSTALLER = Path(__file__).parents[2] / "installer"
INSTALL = INSTALLER / "windows-shell" / "install.ps1"
PROOFS = [INSTALLER.parent / ".ci" / name for name in ("powershell.ps1", "windows.ps1")]
IN_WSL = INSTALLER / "wsl" / "install-in-wsl.ps1"
SH = INSTALLER / "linux" / "install.sh"
BUILD = INSTALLER / "windows-shell" / "build-install"
STAMPED = {
    "version": "1.2.3",
    "wheel": "w.whl",
    "wheel_sha256": "a" * 64,
    "lock_sha256": "b" * 64,
    "releases": "",
    "release_key": "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3",
    "default_index": "https://index.example/simple",
}


def parse_script(text: str) -> tree_sitter.Node:
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_pwsh.language()))
    return parser.parse(text.encode()).root_node


def nodes(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def errors(text: str) -> list[int]:
    """Return the numbers of the lines, from 1, with syntax errors."""
    return [node.start_point[0] + 1 for node in nodes(parse_script(text)) if node.is_error or node.is_missing]


@pytest.mark.parametrize("script", [INSTALL, IN_WSL, *PROOFS], ids=lambda path: path.name)
def test_a_script_has_no_syntax_error(script: Path) -> None:
    # Scripts are ASCII, because Windows PowerShell reads a script in the computer's code page, not in UTF-8.
    assert errors(script.read_text("ascii")) == []


@pytest.mark.parametrize("broken", ["if ($a { 1 }", "function f { 'open }", "$x = @(1, 2"])
def test_syntax_errors_are_found(broken: str) -> None:
    assert errors(f"$a = 1\n{broken}\n")


@pytest.mark.parametrize("script", [INSTALL, IN_WSL], ids=lambda path: path.name)
def test_each_called_function_exists(script: Path) -> None:
    """Every command is one of PowerShell's or a function of the script, in the same upper and lower case."""
    text = script.read_text("ascii")
    made = set(re.findall(r"^function ([\w-]+)", text, re.MULTILINE))
    called = {
        node.text.decode()
        for node in nodes(parse_script(text))
        if node.type == "command_name" and node.text is not None and re.fullmatch(rb"[A-Z]\w+-\w+", node.text)
    }
    theirs = {
        "Add-Type", "ConvertFrom-Json", "ForEach-Object", "Copy-Item", "Get-ChildItem", "Get-Command", "Get-Content",
        "Get-FileHash", "Get-ItemProperty", "Get-Process", "Invoke-WebRequest", "Join-Path", "Move-Item", "New-Item",
        "New-Object", "Out-Null", "Read-Host",
        "Remove-Item", "Remove-ItemProperty", "Resolve-Path", "Select-Object", "Set-ItemProperty", "Set-StrictMode",
        "Sort-Object", "Split-Path", "Test-Path", "Where-Object", "Write-Host",
    }  # fmt: skip
    assert called - theirs <= made
    assert made <= called


def of_sh(name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*?)(?: +#.*)?$", SH.read_text("utf-8"), re.MULTILINE)
    return str(found).strip("'\"")


def of_ps1(name: str) -> str:
    (found,) = re.findall(rf"^\${name} = ['\"]?(.*?)['\"]?(?: +#.*)?$", INSTALL.read_text("ascii"), re.MULTILINE)
    return str(found)


def test_values_equal_those_of_install_sh() -> None:
    for name in ("uv_version", "pythons", "room_mib"):
        assert of_ps1(name) == of_sh(name), name
    assert f'"{of_ps1("network")}"' in SH.read_text("utf-8")
    assert (
        of_ps1("lock") == of_sh("lock").replace("{version:-X}", "version") == "mtp_launcher-$version-requirements.txt"
    )
    assert of_ps1("run_value") == RUN_VALUE
    assert of_ps1("run_key") == f"HKCU:\\{RUN_KEY}"
    assert RELEASES_VARIABLE in INSTALL.read_text("ascii")


def function(name: str) -> str:
    (found,) = re.findall(rf"^function {name}\b.*?^}}", INSTALL.read_text("ascii"), re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_release_is_found() -> None:
    """The release is at the user's address, else in the script's folder, else at the project's address; else a hint is
    shown."""
    find = function("Find-Release")
    places = ["$Offline", "$From", f"$env:{RELEASES_VARIABLE}", "Split-Path -Parent $PSCommandPath", "return $releases"]
    order = [find.index(place) for place in [*places, 'Stop-With "The files of this release']]
    assert order == sorted(order)
    assert "name their folder or address with -From" in find
    (parameters,) = re.findall(r"^param\((.*?)^\)", INSTALL.read_text("ascii"), re.MULTILINE | re.DOTALL)
    assert "[string] $From = ''" in parameters
    install = function("Install-Program")
    assert install.index("$release = Find-Release") < install.index("New-Item")
    assert "$release" in re.findall(r"Initialize-Version .*", install)[0]
    begun = function("Initialize-Version")
    for name in ("wheel", "lock"):
        assert f"Get-Checked ${name} ${name}_sha256 $Release\n" in begun


def test_install_sh_searches_in_the_same_order() -> None:
    text = SH.read_text("utf-8")
    beside = re.search(r'&& \[ -z "\$\{(\w+):-\}" \]; then\n.*\n +if \[ -f "\$here/manifest.json" \]', text)
    assert beside
    assert beside[1] == RELEASES_VARIABLE


def test_the_release_is_verified_as_by_install_sh() -> None:
    """The signature is checked after the packages are installed, which include the verifier, and before the program
    is."""
    packages = function("Install-Package")
    steps = ["--require-hashes", "Confirm-Release $Python $Release", "& $Uv tool install"]
    assert [packages.index(step) for step in steps] == sorted(packages.index(step) for step in steps)
    confirm = function("Confirm-Release")
    assert "# include ../verify_signature.py\n'@" in confirm
    assert confirm.index("$LASTEXITCODE -ne 0") < confirm.index("Find-Installer")
    begun = function("Initialize-Version")
    assert begun.index("'manifest.json.minisig'") < begun.index("Install-Package") < begun.index("complete")
    install = function("Install-Program")
    assert install.index("Assert-Order") < install.index("Test-Version")
    text = SH.read_text("utf-8").replace("install.sh", "install.ps1")
    for each in (
        "manifest.json is not signed by this program's maintainer, so nothing of this release is used.",
        "The signed release has other files than this install.ps1 expects.",
        "This build has no key to verify releases with.",
        "not an address that a release may come from.",
        ", which is older.",
    ):
        assert each in text
        assert each in INSTALL.read_text("ascii")
    assert RELEASE_KEY_VARIABLE in INSTALL.read_text("ascii")


def test_the_wsl_helper_runs_only_the_script_that_it_was_built_with(tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_text(f"release_key={STAMPED['release_key']}\n")
    subprocess.run([INSTALLER / "wsl" / "build-install", tmp_path], check=True, timeout=60)
    inside = (tmp_path / "inside.sh").read_bytes()
    assert f"\nrelease_key={STAMPED['release_key']}\n".encode() in inside
    assert b"\nverify_signature() {\n" in inside
    script = (tmp_path / "install-in-wsl.ps1").read_text("ascii")
    assert errors(script) == []
    assert f"\n$inside_sha256 = '{sha256(inside).hexdigest()}'\n" in script
    main = script[script.index("\n$code = 0\ntry {\n") :]
    assert main.index("Assert-Inside") < main.index("Install-Program $chosen")
    assert "-ne $inside_sha256" in script


def test_variables_are_hidden_from_uv_as_by_install_sh() -> None:
    (hidden,) = re.findall(r"^ +unset (.*?) 2>/dev/null", SH.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = INSTALL.read_text("ascii")
    (cleared,) = re.findall(r"^\$variables = (.*?)\n[$#\n]", text, re.MULTILINE | re.DOTALL)
    ours = set(re.findall(r"\w+", cleared))
    assert ours >= set(re.findall(r"\w+", hidden))
    for name in ("UV_NO_CONFIG", "UV_CACHE_DIR", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "UV_PYTHON_INSTALL_DIR"):
        assert name in ours
        assert f"$env:{name} = " in text
        assert f" {name}=" in SH.read_text("utf-8")


@pytest.mark.parametrize(("script", "end"), [(SH, "\nEND\n"), (INSTALL, "# Written by ")], ids=["sh", "ps1"])
def test_variables_in_the_help_are_used(script: Path, end: str) -> None:
    head, _, body = script.read_text("utf-8").partition(end)
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        assert name in head
        assert name in body


def test_a_version_that_no_longer_starts_is_reinstalled() -> None:
    text = INSTALL.read_text("ascii")
    (check,) = re.findall(r"^function Test-Version.*?^}", text, re.MULTILINE | re.DOTALL)
    assert "'--version'" in check
    assert re.search(r"if \(Test-Version \$fresh\) \{\s+Write-Host 'This version is installed already", text)


@pytest.mark.parametrize("script", [INSTALL, IN_WSL], ids=lambda path: path.name)
def test_output_of_programs_is_read_as_utf_8(script: Path) -> None:
    """UTF-8 is set before a program is run, and restored at the end. Otherwise paths with a non-ASCII user name would
    break."""
    text = script.read_text("ascii")
    main = text[text.index("\n$code = 0\ntry {\n") :]
    wanted = "[Console]::OutputEncoding = New-Object System.Text.UTF8Encoding $false"
    begun = "if ($Uninstall)"
    assert 0 < main.index(wanted) < main.index(begun)
    assert 0 < main.index("\n} finally {\n") < main.index("[Console]::OutputEncoding = $encodingBefore")
    assert 0 < text.index("$encodingBefore = [Console]::OutputEncoding") < text.index(main)


def uv_commands(text: str) -> list[list[str]]:
    """Return the uv commands of a script in order, without options for paths."""
    lines = re.sub(r"[`\\]\n\s*", "", text).splitlines()
    found = []
    for line in lines:
        call = re.search(r"""(?:"\$uv"|& \$Uv|Invoke-Quietly \$Uv) (?!@)(.*)""", line)
        if call:
            words = re.findall(r"--?[\w-]+|:all:|(?<![$\w-])(?:python|pip|tool|find|install|3\.13)\b|pythons", call[1])
            found.append(words)
    return found


def test_the_steps_are_those_of_install_sh() -> None:
    theirs, ours = uv_commands(SH.read_text("utf-8")), uv_commands(INSTALL.read_text("ascii"))
    assert ours == theirs
    assert [words[:2] for words in ours] == [
        ["python", "find"], ["python", "install"], ["python", "find"], ["pip", "install"], ["tool", "install"],
        ["--version"],
    ]  # fmt: skip


def test_the_script_is_stamped_with_the_values_of_install_sh(tmp_path: Path) -> None:
    assert not any(of_ps1(name) for name in STAMPED)
    (tmp_path / "install.sh").write_text("".join(f"{name}={value}\n" for name, value in STAMPED.items()))
    subprocess.run([BUILD, tmp_path], check=True, timeout=60)
    stamped = (tmp_path / "install.ps1").read_text("ascii")
    assert "\ndef is_signed(" in stamped
    assert errors(stamped) == []
    for name, value in STAMPED.items():
        assert f"\n${name} = '{value}'\n" in stamped
    (tmp_path / "install.sh").write_text("version=1.2.3\n")
    result = subprocess.run([BUILD, tmp_path], check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "names no wheel" in result.stderr


def test_the_build_scripts_are_valid_posix_shell() -> None:
    assert shutil.which("dash")
    for script in (BUILD, INSTALLER / "wsl" / "build-install"):
        subprocess.run(["dash", "-n", script], check=True, timeout=60)
        subprocess.run(["shellcheck", script], check=True, timeout=60)
