"""A release is signed only with the key that its own programs trust."""

import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "launcher" / "updates" / "signature.py").read_text("utf-8")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A secret key without a password, its public key beside it."""
    path = tmp_path / "minisign.key"
    assert run("minisign", "-G", "-W", "-p", tmp_path / "minisign.pub", "-s", path).returncode == 0
    return path


def release(folder: Path, key: str) -> Path:
    """The files that installer/release leaves, as far as signing reads them."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "mtp_launcher-1.2.0-py3-none-any.whl", "w") as wheel:
        assert 'RELEASE_KEY = ""\n' in SOURCE
        wheel.writestr("launcher/updates/signature.py", SOURCE.replace('RELEASE_KEY = ""', f'RELEASE_KEY = "{key}"'))
    for name in ("install.sh", "inside.sh"):
        (folder / name).write_text(f"release_key={key}\nrelease_key=${{OTHER:-$release_key}}\n", "utf-8")
    (folder / "install.ps1").write_text(f"$release_key = '{key}'\n", "utf-8")
    (folder / "manifest.json").write_text('{"version": "1.2.0"}\n', "utf-8")
    write_sums(folder)
    return folder


def write_sums(folder: Path) -> None:
    files = [path for path in sorted(folder.iterdir()) if path.name != "SHA256SUMS"]
    sums = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), "utf-8")


def test_a_release_is_signed_for_the_key_that_its_programs_trust(tmp_path: Path, secret: Path) -> None:
    key = (tmp_path / "minisign.pub").read_text("utf-8").splitlines()[1]
    dist = release(tmp_path / "dist", key)
    result = run(ROOT / "installer" / "sign-release", dist, secret)
    assert result.returncode == 0, result.stderr
    assert "trusted comment: mtp-launcher 1.2.0" in (dist / "manifest.json.minisig").read_text("utf-8")
    assert run("minisign", "-V", "-P", key, "-m", dist / "manifest.json").returncode == 0
    (dist / "manifest.json").write_text("{}", "utf-8")
    result = run(ROOT / "installer" / "sign-release", dist, secret)
    assert "The files are not those of SHA256SUMS" in result.stderr


@pytest.mark.parametrize("name", ["install.sh", "install.ps1", "inside.sh"])
def test_a_script_with_another_key_is_not_published(tmp_path: Path, secret: Path, name: str) -> None:
    key = (tmp_path / "minisign.pub").read_text("utf-8").splitlines()[1]
    dist = release(tmp_path / "dist", key)
    script = dist / name
    script.write_text(script.read_text("utf-8").replace(key, ""), "utf-8")
    write_sums(dist)
    result = run(ROOT / "installer" / "sign-release", dist, secret)
    assert result.returncode == 1
    assert f"{name} trusts another key" in result.stderr
    assert not (dist / "manifest.json.minisig").exists()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "has the placeholder for a key"),
        ("RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3", "trusts another key"),
    ],
)
def test_a_release_that_its_programs_would_refuse_is_not_signed(
    tmp_path: Path, secret: Path, key: str, reason: str
) -> None:
    dist = release(tmp_path / "dist", key)
    result = run(ROOT / "installer" / "sign-release", dist, secret)
    assert result.returncode == 1
    assert reason in result.stderr
    assert not (dist / "manifest.json.minisig").exists()
