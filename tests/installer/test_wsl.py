"""installer/wsl/inside.sh, the script that runs inside a WSL distribution, in a folder that looks like one."""

import json
import os
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.updates.signing import Maintainer

INSIDE = Path(__file__).parents[2] / "installer" / "wsl" / "inside.sh"
PICTURE = Path(__file__).parents[2] / "resources" / "desktop" / "mtp-launcher-256.png"


class Distribution:
    """A folder that looks like a distribution of WSL 2 on a computer with an NVIDIA GPU."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs, self.home = root, root / "programs", root / "home" / "me"
        self.write("proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
        self.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n")
        for name in ("mnt/wslg/x", "dev/dxg", "usr/lib/wsl/lib/libnvidia-ml.so.1"):
            self.write(name, "")
        self.program("apt-get", f'printf "%s\\n" "$*" >>"{root}/apt"')
        self.program("uname", "echo x86_64")
        self.program("id", "echo 0")
        self.maintainer = Maintainer()
        stamp = [sys.executable, INSIDE.parents[1] / "stamp.py", INSIDE, f"release_key={self.maintainer.public_key}"]
        self.script = self.write("inside.sh", subprocess.run(stamp, capture_output=True, text=True, check=True).stdout)

    def release(self, name: str, text: str, version: str = "1.2", signer: Maintainer | None = None) -> Path:
        """Put a file with this text and a signed manifest of it on drive C."""
        path = self.write(f"mnt/c/A User/{name}", text)
        artefacts = [{"name": name, "platform": "any", "size": 1, "sha256": sha256(text.encode()).hexdigest()}]
        manifest = self.write("mnt/c/A User/manifest.json", json.dumps({"version": version, "artefacts": artefacts}))
        signature = (signer or self.maintainer).sign(manifest.read_bytes())
        self.write("mnt/c/A User/manifest.json.minisig", signature)
        return path

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, does: str) -> None:
        self.write(f"programs/{name}", f"#!/bin/sh\n{does}\n").chmod(0o755)

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "HOME": str(self.home), "WSL_ROOT": str(self.root)}
        command = ["dash", self.script, *arguments]
        return subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture
def wsl(tmp_path: Path) -> Distribution:
    return Distribution(tmp_path / "root")


def test_a_suitable_distribution_is_accepted(wsl: Distribution) -> None:
    result = wsl.run("check")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ok"] * 6
    assert "WSL has 16.0 GiB of memory." in result.stdout


@pytest.mark.parametrize(
    ("name", "text", "code", "expected"),
    [
        ("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n", 1, "wsl --set-version"),
        ("mnt/wslg", None, 1, "wsl --update"),
        ("dev/dxg", None, 0, "no /dev/dxg"),
        ("usr/lib/wsl/lib/libnvidia-ml.so.1", None, 0, "no NVIDIA driver"),
        ("usr/lib/x86_64-linux-gnu/libcuda.so.580.1", "", 0, "hides the driver of Windows"),
        ("proc/meminfo", "MemTotal: 8000000 kB\n", 0, "WSL has 7.6 GiB of memory"),
        ("programs/uname", "#!/bin/sh\necho aarch64\n", 1, "x86_64 processors only; this is aarch64"),
        ("home/me/.config/mtp-launcher/settings.toml", '[models]\nfolder = "/mnt/d/m"\n', 0, "on a Windows drive"),
    ],
)
def test_an_unsuitable_distribution_is_reported(
    wsl: Distribution, name: str, text: str | None, code: int, expected: str
) -> None:
    path = wsl.root / name
    if text is None:
        path.rename(path.with_name("gone"))
    else:
        wsl.write(name, text)
    result = wsl.run("check")
    assert result.returncode == code, result.stdout + result.stderr
    (line,) = [each for each in result.stdout.splitlines() if not each.startswith("  ok ")]
    assert line.startswith("  missing " if code else "  note ")
    assert expected in line


def test_models_on_a_windows_drive_are_warned_about(wsl: Distribution) -> None:
    assert "on a Windows drive" in wsl.run("check", MTP_LAUNCHER_MODELS="/mnt/c/models").stdout
    assert "on a Windows drive" not in wsl.run("check", MTP_LAUNCHER_MODELS="/mnt/data/models").stdout


def test_the_package_is_copied_to_where_apt_can_read_it(wsl: Distribution) -> None:
    deb = wsl.release("mtp-launcher_1.2_amd64.deb", "package")
    wsl.program("apt-get", f'printf "%s\\n" "$*" >>"{wsl.root}/apt"; for f; do :; done; [ "$1" = update ] || cat "$f"')
    result = wsl.run("install", deb)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "package"
    update, install = (wsl.root / "apt").read_text().splitlines()
    assert update == "update -qq"
    assert install.startswith("install -y --no-install-recommends /")
    assert install.endswith("/mtp-launcher_1.2_amd64.deb")
    assert not Path(install.split()[-1]).exists()


def test_without_a_network_the_package_is_tried(wsl: Distribution) -> None:
    wsl.program("apt-get", '[ "$1" != update ]')
    deb = wsl.release("x.deb", "package")
    assert wsl.run("install", deb).returncode == 0
    wsl.program("apt-get", "exit 100")
    assert wsl.run("install", deb).returncode == 100


UNSIGNED = "manifest.json is not signed by this program's maintainer, so nothing was installed."


def check_refusal(wsl: Distribution, path: Path, reason: str) -> None:
    result = wsl.run("install", path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"Error: {reason}" in result.stderr
    assert not (wsl.root / "apt").exists()


@pytest.mark.parametrize("name", ["mtp-launcher_1.2_amd64.deb", "install.sh"])
def test_a_file_without_the_maintainers_signature_is_refused(wsl: Distribution, name: str) -> None:
    """No part of it runs, and apt is not called."""
    ran = wsl.root / "ran"
    text = f'echo >"{ran}"\n'
    path = wsl.release(name, text)
    manifest, signature = path.with_name("manifest.json"), path.with_name("manifest.json.minisig")
    path.write_text(f"{text}# changed\n")
    check_refusal(wsl, path, f"{name} is not a file of the release that was signed.")
    manifest.write_text(
        manifest.read_text().replace(sha256(text.encode()).hexdigest(), sha256(path.read_bytes()).hexdigest())
    )
    check_refusal(wsl, path, UNSIGNED)
    wsl.release(name, text, signer=Maintainer(2))
    check_refusal(wsl, path, UNSIGNED)
    wsl.release(name, text)
    signature.write_text(signature.read_text()[:-20])
    check_refusal(wsl, path, UNSIGNED)
    signature.unlink()
    check_refusal(wsl, path, f"There is no manifest.json.minisig beside {name}.")
    assert not ran.exists()


def test_a_file_that_is_not_in_the_manifest_is_refused(wsl: Distribution) -> None:
    """An older package in the same folder is an example."""
    older = wsl.release("mtp-launcher_1.1_amd64.deb", "older", "1.1")
    wsl.release("mtp-launcher_1.2_amd64.deb", "package")
    check_refusal(wsl, older, "mtp-launcher_1.1_amd64.deb is not a file of the release that was signed.")


def test_an_older_package_than_is_installed_is_refused(wsl: Distribution) -> None:
    wsl.program("dpkg-query", "echo 1.10")
    deb = wsl.release("x.deb", "package", "1.9")
    check_refusal(wsl, deb, "MTP Launcher 1.10 is installed, and this is 1.9, which is older.")
    wsl.release("x.deb", "package", "1.10")
    assert wsl.run("install", deb).returncode == 0


def test_without_a_key_nothing_is_installed(wsl: Distribution) -> None:
    deb = wsl.release("x.deb", "package")
    wsl.script = INSIDE
    check_refusal(wsl, deb, "This copy of inside.sh has no key to verify releases with.")


def test_missing_packages_for_verification_are_installed(wsl: Distribution) -> None:
    deb = wsl.release("x.deb", "package")
    wsl.program("openssl", f'[ -e "{wsl.root}/openssl" ] && exec /usr/bin/openssl "$@"; exit 127')
    wsl.program("apt-get", f'case "$*" in (*openssl) : >"{wsl.root}/openssl" ;; (*) echo "$*" ;; esac')
    path = f"{wsl.programs}:{few_programs(wsl)}"
    result = wsl.run("install", deb, PATH=path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].endswith("/x.deb")
    (wsl.root / "openssl").unlink()
    wsl.program("apt-get", "exit 100")
    assert "There is nothing to verify the release with." in wsl.run("install", deb, PATH=path).stderr


def few_programs(wsl: Distribution) -> Path:
    """Return a folder with the programs that inside.sh needs, except minisign."""
    folder = wsl.root / "few"
    folder.mkdir()
    names = "awk base64 cat chmod cp cut dash dirname head mkdir mktemp rm sed sha256sum sh sort tail tr wc"
    for name in names.split():
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return folder


def test_a_failed_installation_is_reported(wsl: Distribution) -> None:
    assert "There is no" in wsl.run("install", wsl.root / "none.deb").stderr
    wsl.program("id", "echo 1000")
    assert "wsl -u root" in wsl.run("install", wsl.write("x.deb", "")).stderr


def test_without_apt_install_sh_is_run(wsl: Distribution) -> None:
    script = wsl.release("install.sh", 'echo "$@"\n')
    assert wsl.run("install", script).stdout == "\n"
    assert wsl.run("install", script, "/a folder").stdout == "--offline /a folder\n"


@pytest.mark.parametrize("place", ["usr/share", "home/me/.local/share"])
def test_the_icon_is_made_from_the_picture_of_the_program(wsl: Distribution, tmp_path: Path, place: str) -> None:
    path = wsl.root / place / "icons" / "hicolor" / "256x256" / "apps" / "mtp-launcher.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(PICTURE.read_bytes())
    icon = tmp_path / "mtp-launcher.ico"
    result = wsl.run("icon", icon)
    assert result.returncode == 0, result.stderr
    data = icon.read_bytes()
    assert struct.unpack("<3H4B2H2I", data[:22]) == (0, 1, 1, 0, 0, 0, 0, 1, 32, PICTURE.stat().st_size, 22)
    assert data[22:] == PICTURE.read_bytes()


def test_without_the_program_there_is_no_icon_and_no_command(wsl: Distribution, tmp_path: Path) -> None:
    assert wsl.run("icon", tmp_path / "x.ico").returncode == 1
    assert "not installed here" in wsl.run("command").stderr


def test_the_command_of_the_package_comes_before_that_of_the_user(wsl: Distribution) -> None:
    own = wsl.write("home/me/.local/bin/mtp-launcher", "")
    own.chmod(0o755)
    assert wsl.run("command").stdout == f"{own}\n"
    packaged = wsl.write("usr/bin/mtp-launcher", "")
    packaged.chmod(0o755)
    assert wsl.run("command").stdout == f"{packaged}\n"


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    subprocess.run(["shellcheck", INSIDE, Distribution(tmp_path).script], check=True, timeout=60)
    assert os.access(INSIDE, os.X_OK)
    assert b"\r" not in INSIDE.read_bytes()
