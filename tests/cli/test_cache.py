"""`mtp-launcher cache`: what is kept on disk is listed, verified and deleted."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from launcher.app.settings import open_vault
from tests import forked
from tests.gateway.test_vault import fill_state, make_state, write_slot


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The files of two states in the user's vault."""
    path, files = tmp_path / "slot", []
    with closing(open_vault()) as vault:
        for name in ("aaaa1111bbbb", "cccc2222dddd"):
            state = fill_state(make_state(name, name.encode() * 4096), write_slot(path))
            assert vault.keep_file(path, state)
            files.append(vault.path_of(state))
    return files[0], files[1]


def list_ids() -> list[str]:
    return [each["id"] for each in json.loads(forked.run("cache", "--json").stdout)["states"]]


def test_nothing_is_said_to_be_kept_before_the_first_conversation(home: Path) -> None:
    assert forked.run("cache").stdout == "Nothing is kept here yet.\n"


def test_what_is_kept_is_listed(kept: tuple[Path, Path]) -> None:
    assert sorted(list_ids()) == ["aaaa1111", "cccc2222"]
    first = forked.run("cache", "list").stdout.splitlines()[1]
    assert first.split()[0] in ("aaaa1111", "cccc2222")
    assert "agent" in first
    assert "demo" in first


def test_a_damaged_file_is_found_and_deleted(kept: tuple[Path, Path]) -> None:
    assert forked.run("cache", "verify").stdout == "2 of 2 files are whole.\n"
    kept[0].write_bytes(b"changed")
    result = forked.run("cache", "verify")
    assert (result.returncode, result.stdout) == (1, "1 of 2 files are whole.\nDeleted: aaaa1111.\n")
    assert [each.exists() for each in kept] == [False, True]


def test_one_or_all_are_deleted(kept: tuple[Path, Path]) -> None:
    unknown = forked.run("cache", "delete", "eeee3333", "--yes")
    assert (unknown.returncode, list_ids() == []) == (1, False)
    assert "Nothing is kept with the ID eeee3333." in unknown.stderr
    forked.run("cache", "delete", "cccc2222", "--yes")
    assert list_ids() == ["aaaa1111"]
    forked.run("cache", "delete", "all", "--yes")
    assert list_ids() == []
    assert not any(each.exists() for each in kept)


def test_the_beginning_of_an_id_is_enough_if_it_is_of_one(kept: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "slot"
    with closing(open_vault()) as vault:
        assert vault.keep_file(path, fill_state(make_state("aaab3333dddd", b"third" * 4096), write_slot(path)))
    several = forked.run("cache", "delete", "aaa", "--yes")
    assert (several.returncode, len(list_ids())) == (1, 3)
    assert "aaa is the beginning of 2 IDs." in several.stderr
    forked.run("cache", "delete", "aaaa", "aaaa1111", "cc", "--yes")
    assert list_ids() == ["aaab3333"]


def test_all_is_deleted_when_nothing_is_to_be_kept(kept: tuple[Path, Path]) -> None:
    forked.run("settings", "set", "cache.disk", "0")
    assert not any(each.exists() for each in kept)
    assert forked.run("cache").stdout == "Nothing is kept: the setting cache.disk is 0.\n"


def test_a_limit_of_zero_keeps_nothing(home: Path, tmp_path: Path) -> None:
    forked.run("settings", "set", "cache.disk", "0")
    path = tmp_path / "slot"
    with closing(open_vault()) as vault:
        assert not vault.keep_file(path, fill_state(make_state(), write_slot(path)))
    assert json.loads(forked.run("cache", "--json").stdout)["use"]["limit"] == 0
