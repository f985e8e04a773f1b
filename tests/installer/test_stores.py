"""The manifests for package managers, tested without the managers' tools (.ci/stores uses those)."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

STORES = Path(__file__).parents[2] / "installer" / "stores"
NAMES = {
    "deb": "mtp-launcher_1.2.3_amd64.deb",
    "setup": "mtp-launcher-1.2.3-setup.exe",
    "wheel": "mtp_launcher-1.2.3-py3-none-any.whl",
    "requirements": "mtp_launcher-1.2.3-requirements.txt",
}
HASHES = {kind: f"{number:064x}" for number, kind in enumerate(NAMES, 0xA0)}
URL = "https://releases.example/v1.2.3"


def write_manifests(folder: Path, kinds: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run the command on a release with files of these kinds."""
    artefacts = [{"name": NAMES[kind], "sha256": HASHES[kind]} for kind in kinds]
    manifest = {"version": "1.2.3", "built": "2026-11-26T10:00:00+00:00", "artefacts": artefacts}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    command = [sys.executable, STORES / "write.py", folder, URL + "/", folder / "out"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def manifest_folder(tmp_path: Path) -> Path:
    """The manifests of a release."""
    written = write_manifests(tmp_path, [*NAMES])
    assert written.returncode == 0, written.stderr
    return tmp_path / "out"


def test_each_template_is_written_without_placeholders(manifest_folder: Path) -> None:
    templates = {each.relative_to(STORES) for each in STORES.glob("*/*") if each.parent.name != "__pycache__"}
    written = {
        each.relative_to(manifest_folder): each.read_text("utf-8")
        for each in manifest_folder.rglob("*")
        if each.is_file()
    }
    assert written.keys() == templates | {Path("aur/.SRCINFO")}
    for path, text in written.items():
        assert not re.search(r"@\w+@", text), path


def test_windows_package_managers_get_the_setup_program(manifest_folder: Path) -> None:
    manifests = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (manifest_folder / "winget").iterdir()}
    assert {(each["PackageIdentifier"], each["PackageVersion"]) for each in manifests.values()} == {
        ("MTPLauncher.MTPLauncher", "1.2.3")
    }
    [installer] = manifests["MTPLauncher.MTPLauncher.installer.yaml"]["Installers"]
    assert installer["InstallerUrl"] == f"{URL}/{NAMES['setup']}"
    assert installer["InstallerSha256"] == HASHES["setup"].upper()
    scoop = json.loads((manifest_folder / "scoop" / "mtp-launcher.json").read_text("utf-8"))
    assert scoop["architecture"]["64bit"] == {"url": f"{URL}/{NAMES['setup']}", "hash": HASHES["setup"]}
    assert scoop["installer"]["file"] == NAMES["setup"]


def test_linux_package_managers_get_the_package_or_the_wheel(manifest_folder: Path) -> None:
    [module] = yaml.safe_load((manifest_folder / "flathub" / "io.github.mtp_launcher.launcher.yml").read_text("utf-8"))[
        "modules"
    ]
    [source] = module["sources"]
    assert (source["url"], source["sha256"]) == (f"{URL}/{NAMES['deb']}", HASHES["deb"])
    assert f"--checksum=sha256:{HASHES['deb']} {URL}/{NAMES['deb']}" in (
        manifest_folder / "docker" / "Dockerfile"
    ).read_text("utf-8")
    formula = (manifest_folder / "homebrew" / "mtp-launcher.rb").read_text("utf-8")
    for kind in ("wheel", "requirements"):
        assert f'url "{URL}/{NAMES[kind]}", using: :nounzip\n' in formula
        assert f'sha256 "{HASHES[kind]}"' in formula


def test_srcinfo_has_what_pkgbuild_says(manifest_folder: Path) -> None:
    """bash reads the PKGBUILD here; .ci/stores compares with makepkg itself."""
    fields = ("pkgdesc", "pkgver", "arch", "depends", "optdepends", "source", "sha256sums")
    script = "".join(f'printf "{field} = %s\\n" "${{{field}[@]}}"; ' for field in fields)
    read = subprocess.run(
        ["bash", "-c", f". ./PKGBUILD; {script}"],
        cwd=manifest_folder / "aur",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.strip() for line in (manifest_folder / "aur" / ".SRCINFO").read_text("utf-8").splitlines()]
    assert [line for line in lines if line.split(" = ")[0] in fields] == read.stdout.splitlines()
    assert {"pkgbase = mtp-launcher-bin", "pkgname = mtp-launcher-bin"} <= {*lines}


def test_a_release_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    written = write_manifests(tmp_path, ["deb", "wheel", "requirements"])
    assert written.returncode == 1
    assert "The release has 0 files like mtp-launcher-.*-setup" in written.stderr


def test_a_placeholder_without_a_value_is_refused() -> None:
    module = importlib.util.spec_from_file_location("write", STORES / "write.py")
    assert module is not None
    assert module.loader is not None
    write = importlib.util.module_from_spec(module)
    module.loader.exec_module(write)
    with pytest.raises(KeyError, match="unknown"):
        write.fill_places("a @unknown@ place", {})
