"""How the program was installed, told by what lies around it."""

from pathlib import Path

import pytest

from launcher.updates.way import Way, way


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["0.1.0/tools/python/uv-receipt.toml"], Way.TOOL),
        (["0.1.0/tools/python/uv-receipt.toml", "install.sh"], Way.SCRIPT),
        (["install.sh"], Way.SOURCE),
        (["python/Uninstall MTP Launcher.exe"], Way.SETUP),
        (["Uninstall MTP Launcher.exe"], Way.SETUP),
        (["dpkg/mtp-launcher.list"], Way.DEB),
        (["dpkg/other.list"], Way.SOURCE),
        ([], Way.SOURCE),
    ],
)
def test_it_is_told_by_what_lies_around_it(tmp_path: Path, files: list[str], expected: Way) -> None:
    data = tmp_path / "opt" / "resources"
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"/.\n/usr\n{tmp_path / 'opt'}\n{data}\n")
    prefix = next((each.parent for each in tmp_path.rglob("uv-receipt.toml")), tmp_path / "python")
    assert way(prefix, data, tmp_path / "dpkg") is expected


def test_a_package_that_is_installed_beside_a_checkout_is_not_this_program(tmp_path: Path) -> None:
    (tmp_path / "mtp-launcher.list").write_text("/.\n/usr\n/opt/mtp-launcher/resources\n")
    assert way(tmp_path, tmp_path / "checkout" / "resources", tmp_path) is Way.SOURCE


def test_the_tests_run_from_a_checkout() -> None:
    assert way() is Way.SOURCE
