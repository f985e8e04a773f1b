"""The half of the installation into WSL that runs inside a distribution, in a folder that looks like one."""

import os
import struct
import subprocess
from pathlib import Path

import pytest

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

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, does: str) -> None:
        self.write(f"programs/{name}", f"#!/bin/sh\n{does}\n").chmod(0o755)

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "HOME": str(self.home), "WSL_ROOT": str(self.root)}
        command = ["dash", INSIDE, *arguments]
        return subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture
def wsl(tmp_path: Path) -> Distribution:
    return Distribution(tmp_path / "root")


def test_a_good_distribution_is_good(wsl: Distribution) -> None:
    told = wsl.run("check")
    assert told.returncode == 0, told.stdout + told.stderr
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["ok"] * 6
    assert "WSL has 16.0 GiB of memory." in told.stdout


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n", 1, "wsl --set-version"),
        ("mnt/wslg", None, 1, "wsl --update"),
        ("dev/dxg", None, 0, "no /dev/dxg"),
        ("usr/lib/wsl/lib/libnvidia-ml.so.1", None, 0, "not NVIDIA's driver"),
        ("usr/lib/x86_64-linux-gnu/libcuda.so.580.1", "", 0, "hides the one that Windows lends"),
        ("proc/meminfo", "MemTotal: 8000000 kB\n", 0, "WSL has 7.6 GiB of memory"),
        ("programs/uname", "#!/bin/sh\necho aarch64\n", 1, "x86_64 processors only; this is aarch64"),
        ("home/me/.config/mtp-launcher/settings.toml", '[models]\nfolder = "/mnt/d/m"\n', 0, "a drive of Windows"),
    ],
)
def test_what_is_not_good_is_said(wsl: Distribution, name: str, text: str | None, code: int, said: str) -> None:
    path = wsl.root / name
    if text is None:
        path.rename(path.with_name("gone"))
    else:
        wsl.write(name, text)
    told = wsl.run("check")
    assert told.returncode == code, told.stdout + told.stderr
    (line,) = [each for each in told.stdout.splitlines() if not each.startswith("  ok ")]
    assert line.startswith("  missing " if code else "  look ")
    assert said in line


def test_models_on_a_drive_of_windows_are_warned_of(wsl: Distribution) -> None:
    assert "a drive of Windows" in wsl.run("check", MTP_LAUNCHER_MODELS="/mnt/c/models").stdout
    assert "a drive of Windows" not in wsl.run("check", MTP_LAUNCHER_MODELS="/mnt/data/models").stdout


def test_the_package_is_installed_from_where_apt_can_read_it(wsl: Distribution) -> None:
    deb = wsl.write("mnt/c/Users/A User/mtp-launcher_1_amd64.deb", "package")
    wsl.program("apt-get", f'printf "%s\\n" "$*" >>"{wsl.root}/apt"; for f; do :; done; [ "$1" = update ] || cat "$f"')
    told = wsl.run("install", deb)
    assert told.returncode == 0, told.stderr
    assert told.stdout == "package"
    update, install = (wsl.root / "apt").read_text().splitlines()
    assert update == "update -qq"
    assert install.startswith("install -y --no-install-recommends /")
    assert install.endswith("/mtp-launcher.deb")
    assert not Path(install.split()[-1]).exists()


def test_without_a_network_the_package_is_still_tried(wsl: Distribution) -> None:
    wsl.program("apt-get", '[ "$1" != update ]')
    assert wsl.run("install", wsl.write("x.deb", "")).returncode == 0
    wsl.program("apt-get", "exit 100")
    assert wsl.run("install", wsl.write("x.deb", "")).returncode == 100


def test_what_cannot_be_installed_is_said(wsl: Distribution) -> None:
    assert "There is no" in wsl.run("install", wsl.root / "none.deb").stderr
    wsl.program("id", "echo 1000")
    assert "wsl -u root" in wsl.run("install", wsl.write("x.deb", "")).stderr


def test_where_there_is_no_apt_the_script_is_run(wsl: Distribution) -> None:
    script = wsl.write("mnt/c/install.sh", 'echo "$@"\n')
    assert wsl.run("install", script).stdout == "\n"
    assert wsl.run("install", script, "/a folder").stdout == "--offline /a folder\n"


@pytest.mark.parametrize("place", ["usr/share", "home/me/.local/share"])
def test_the_icon_is_the_programs_picture(wsl: Distribution, tmp_path: Path, place: str) -> None:
    path = wsl.root / place / "icons" / "hicolor" / "256x256" / "apps" / "mtp-launcher.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(PICTURE.read_bytes())
    icon = tmp_path / "mtp-launcher.ico"
    told = wsl.run("icon", icon)
    assert told.returncode == 0, told.stderr
    data = icon.read_bytes()
    assert struct.unpack("<3H4B2H2I", data[:22]) == (0, 1, 1, 0, 0, 0, 0, 1, 32, PICTURE.stat().st_size, 22)
    assert data[22:] == PICTURE.read_bytes()


def test_without_the_program_there_is_no_icon_and_no_command(wsl: Distribution, tmp_path: Path) -> None:
    assert wsl.run("icon", tmp_path / "x.ico").returncode == 1
    assert "not installed here" in wsl.run("command").stderr


def test_the_command_is_that_of_the_package_before_the_users_own(wsl: Distribution) -> None:
    own = wsl.write("home/me/.local/bin/mtp-launcher", "")
    own.chmod(0o755)
    assert wsl.run("command").stdout == f"{own}\n"
    packaged = wsl.write("usr/bin/mtp-launcher", "")
    packaged.chmod(0o755)
    assert wsl.run("command").stdout == f"{packaged}\n"


def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", INSIDE], check=True, timeout=60)
    assert os.access(INSIDE, os.X_OK)
    assert b"\r" not in INSIDE.read_bytes()
