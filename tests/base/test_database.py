"""The program's SQLite files: versions, damage, and permissions."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from launcher.base.database import open_database, open_memory
from launcher.base.errors import WrittenByNewer
from launcher.base.kept_files import find_version_copies

FIRST, SECOND = "CREATE TABLE a (x); CREATE TABLE b (y)", "ALTER TABLE a ADD COLUMN z DEFAULT 7"
WHAT = "The file of tests"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.db"


def test_a_database_is_migrated_step_by_step(path: Path) -> None:
    with closing(open_database(path, (FIRST,), WHAT).db) as db:
        db.execute("INSERT INTO a VALUES (1)")
    for _ in range(2):
        opened = open_database(path, (FIRST, SECOND), WHAT)
        with closing(opened.db) as db:
            assert db.execute("SELECT x, z FROM a").fetchall() == [(1, 7)]
            assert db.execute("PRAGMA user_version").fetchone() == (2,)
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert opened.notice == ""
    with pytest.raises(WrittenByNewer, match=r"The file of tests .* was written by a newer version"):
        open_database(path, (FIRST,), WHAT)


def test_a_step_that_fails_changes_nothing(path: Path) -> None:
    with closing(open_database(path, (FIRST,), WHAT).db):
        pass
    with pytest.raises(sqlite3.OperationalError):
        open_database(path, (FIRST, "CREATE TABLE c (x); CREATE TABLE a (x)"), WHAT)
    with closing(open_database(path, (FIRST,), WHAT).db) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'c'").fetchone() == (0,)


def test_a_copy_is_kept_before_a_migration(path: Path) -> None:
    third = "CREATE TABLE c (x)"
    with closing(
        open_database(path, (FIRST,), WHAT).db
    ) as other:  # while this connection is open, its data is in the write-ahead log only
        other.execute("INSERT INTO a VALUES (1)")
        with closing(open_database(path, (FIRST, SECOND), WHAT).db) as db:
            db.execute("INSERT INTO a (x) VALUES (2)")
    copy = path.with_name("file.db.old-v1")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT * FROM a").fetchall() == [(1,)]
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    for migrations, kept in (((FIRST, SECOND), "file.db.old-v1"), ((FIRST, SECOND, third), "file.db.old-v2")):
        with closing(open_database(path, migrations, WHAT).db):
            pass
        assert [each.name for each in find_version_copies([path.parent])] == [kept]
    with pytest.raises(WrittenByNewer) as caught:
        open_database(path, (FIRST,), WHAT)
    assert "before the update" not in caught.value.hint  # the copy is of a newer version, too, so it is not offered
    with pytest.raises(WrittenByNewer) as caught:
        open_database(path, (FIRST, SECOND), WHAT)
    assert "move file.db, file.db-wal and file.db-shm away, and rename file.db.old-v2 to file.db" in caught.value.hint
    path.unlink()
    path.with_name("file.db.old-v2").rename(path)
    with closing(open_database(path, (FIRST, SECOND), WHAT).db) as db:
        assert db.execute("SELECT x FROM a").fetchall() == [(1,), (2,)]


def test_a_new_database_has_no_copy(path: Path) -> None:
    with closing(open_database(path, (FIRST, SECOND), WHAT).db):
        pass
    with closing(open_memory((FIRST, SECOND), WHAT).db):
        pass
    assert find_version_copies([path.parent, Path()]) == []


def test_a_database_that_cannot_be_copied_is_not_migrated(path: Path) -> None:
    with closing(open_database(path, (FIRST,), WHAT).db):
        pass
    path.with_name("file.db.old-v1").mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="directory"):
            open_database(path, (FIRST, SECOND), WHAT)
    with closing(open_database(path, (FIRST,), WHAT).db) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert sorted(each.name for each in path.parent.iterdir()) == ["file.db", "file.db.old-v1"]


@pytest.mark.parametrize("where", ["head", "page", "ready"])
def test_a_damaged_database_is_renamed(path: Path, where: str) -> None:
    with closing(open_database(path, (FIRST,), WHAT).db) as db:
        db.execute("CREATE INDEX i ON a (x)")
        db.executemany("INSERT INTO a VALUES (?)", [("text" * 50,)] * 500)
    data = path.read_bytes()
    at = 0 if where == "head" else len(data) // 2
    if where != "ready":
        path.write_bytes(data[:at] + b"\xa5" * 4_096 + data[at + 4_096 :])
    seen: list[sqlite3.Connection] = []

    def prepare_database(db: sqlite3.Connection) -> None:
        seen.append(db)
        if where == "ready" and len(seen) == 1:
            error = sqlite3.DatabaseError("malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error

    opened = open_database(path, (FIRST,), WHAT, prepare_database)
    with closing(opened.db) as db:
        assert db.execute("SELECT count(*) FROM a").fetchone() == (0,)
        assert seen[-1] is db
    assert opened.notice == "The file of tests was damaged. A new one was created; the old one is kept as file.db.bad."
    assert path.with_name("file.db.bad").exists()


def test_other_errors_are_raised_and_nothing_is_renamed(path: Path) -> None:
    def prepare_database(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("locked")

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_database(path, (FIRST,), WHAT, prepare_database)
    assert sorted(each.name for each in path.parent.iterdir()) == ["file.db"]


def test_a_database_in_memory_has_the_same_tables(tmp_path: Path) -> None:
    with closing(open_memory((FIRST, SECOND), WHAT).db) as db:
        db.execute("INSERT INTO a (x) VALUES (1)")
        assert db.execute("SELECT z FROM a").fetchone() == (7,)
    assert not list(tmp_path.glob("**/*.db"))
