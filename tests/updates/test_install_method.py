"""The installation method is recognised by the files around the program."""

from pathlib import Path

import pytest

from launcher.updates.install_method import InstallMethod, find_install_method


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["0.1.0/tools/python/uv-receipt.toml"], InstallMethod.TOOL),
        (["0.1.0/tools/python/uv-receipt.toml", "install.sh"], InstallMethod.SCRIPT),
        (["install.sh"], InstallMethod.SOURCE),
        (["Uninstall MTP Launcher.exe"], InstallMethod.SETUP),
        (["dpkg/mtp-launcher.list"], InstallMethod.DEB),
        (["dpkg/other.list"], InstallMethod.SOURCE),
        ([], InstallMethod.SOURCE),
    ],
)
def test_the_install_method_is_recognised_by_the_files_around_it(
    tmp_path: Path, files: list[str], expected: InstallMethod
) -> None:
    data = tmp_path / "opt" / "resources"
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"/.\n/usr\n{tmp_path / 'opt'}\n{data}\n")
    prefix = next((each.parent for each in tmp_path.rglob("uv-receipt.toml")), tmp_path / "python")
    assert find_install_method(prefix, data, tmp_path / "dpkg") is expected


def test_a_package_beside_a_checkout_is_not_this_program(tmp_path: Path) -> None:
    (tmp_path / "mtp-launcher.list").write_text("/.\n/usr\n/opt/mtp-launcher/resources\n")
    assert find_install_method(tmp_path, tmp_path / "checkout" / "resources", tmp_path) is InstallMethod.SOURCE


def test_the_tests_run_from_a_checkout() -> None:
    assert find_install_method() is InstallMethod.SOURCE
