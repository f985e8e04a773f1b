"""The models on this machine: what is known of them, found, verified and removed."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import ModelBroken, ModelMissing, ModelUnknown
from launcher.base.paths import models_dir
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.gguf import GgufModel, read_model
from launcher.models.library import (
    LocalModel,
    Outcome,
    Place,
    State,
    find,
    find_companion,
    find_file,
    library,
    named,
    remove,
    split_names,
    verify,
)
from launcher.models.library_index import Record, index_path, keep_hash, keep_record, read_index
from launcher.models.locate import locate, refuse_damaged
from tests.models.test_gguf_split import write_split

DEMO = next(model for model in shipped_models() if model.id == "demo")
REPO, FILE = "owner/Demo-GGUF", "demo-F16.gguf"
MINE = replace(DEMO, id="mine", repo=REPO, revision="a" * 40, files=(ModelFile(quant="F16", file=FILE),))
NOTHING = Catalogue(())


@pytest.fixture(autouse=True)
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub's tools that holds nothing yet."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "hf" / "hub"


@pytest.fixture
def put(demo_model: Path) -> Callable[[Path], Path]:
    """Copy the demo model to a place."""

    def copy(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, path)
        return path

    return copy


def only(catalogue: Catalogue = NOTHING) -> LocalModel:
    (local,) = library(catalogue).models
    return local


class TestWhatIsHere:
    def test_nothing(self, home: Path) -> None:
        assert library(NOTHING).models == ()
        assert find(MINE) is None
        assert not (home / "data").exists()

    def test_a_file_that_was_laid_into_the_folder(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / REPO / FILE)
        local = only(Catalogue((MINE,)))
        record = local.record
        assert (record.path, record.repo, record.file) == (path, REPO, FILE)
        assert (record.model, record.quant, record.words) == ("mine", "F16", "mine:F16")
        assert (record.head, record.received_s, record.bytes) == ("present", None, path.stat().st_size)
        assert (local.state, local.place, local.verified_s) == (State.UNVERIFIED, Place.OURS, None)
        unknown = only()
        assert unknown == local  # its header is read once

    def test_one_that_nobody_knows(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / "loose.gguf")
        record = only().record
        assert (record.repo, record.model, record.words) == (None, None, str(path))

    def test_one_that_has_changed_is_read_again(self, put: Callable[[Path], Path], headless_model: Path) -> None:
        path = put(models_dir() / FILE)
        assert only().record.head == "present"
        shutil.copy(headless_model, path)
        assert only().record.head == "none"

    def test_one_that_is_none(self) -> None:
        models_dir().mkdir(parents=True)
        (models_dir() / "x.gguf").write_bytes(b"<html>")
        (models_dir() / "y.gguf.part").write_bytes(b"GGUF")
        (models_dir() / "imatrix_unsloth.gguf").write_bytes(b"GGUF")
        record = only().record
        assert record.problem
        assert record.head is None

    def test_one_that_was_only_found_is_forgotten_when_it_goes(self, put: Callable[[Path], Path]) -> None:
        put(models_dir() / FILE)
        assert only().path.name == FILE
        (models_dir() / FILE).unlink()
        assert library(NOTHING).models == ()
        assert read_index()[0].records == []

    def test_one_that_was_downloaded_is_missed(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / FILE)
        keep_record(Record(paths=(path,), received_s=1.0))
        path.unlink()
        assert only().state is State.MISSING
        assert find(MINE) is None

    def test_one_that_its_cache_has_no_longer_is_forgotten(self, no_caches: Path) -> None:
        keep_record(Record(paths=(no_caches / "models--a--b" / FILE,), repo="a/b", file=FILE, received_s=1.0))
        assert library(NOTHING).models == ()
        assert read_index()[0].records == []

    def test_one_that_is_missed_can_be_forgotten(self) -> None:
        keep_record(Record(paths=(models_dir() / REPO / FILE,), received_s=1.0))
        assert remove(only()) == 0
        assert library(NOTHING).models == ()

    def test_whole_models_that_are_only_named_like_parts(self, put: Callable[[Path], Path]) -> None:
        for name in split_names("x-00001-of-00002.gguf"):
            put(models_dir() / REPO / name)
        assert "do not belong together" in (only().record.problem or "")

    def test_one_that_is_received_while_it_is_found_keeps_its_origin(
        self, put: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        received = Record(paths=(put(models_dir() / REPO / FILE),), repo=REPO, revision="r", file=FILE, received_s=1.0)

        def read_meanwhile(path: Path) -> GgufModel:
            keep_record(received)  # a pull in another process comes to its end
            return read_model(path)

        monkeypatch.setattr("launcher.models.library.read_model", read_meanwhile)
        assert only().record == received
        assert read_index()[0].records == [received]

    def test_a_split_model_is_one(self) -> None:
        first = write_split(models_dir() / REPO)
        record = only().record
        assert record.path == first
        assert len(record.paths) == 3
        assert record.head == "present"
        assert find_file(REPO, first.name) is not None

    def test_a_split_model_with_a_part_missing(self) -> None:
        first = write_split(models_dir() / REPO)
        first.with_name(first.name.replace("-00001-", "-00002-")).unlink()
        assert "00002-of-00003" in (only().record.problem or "")
        assert find_file(REPO, first.name) is None

    def test_what_lies_in_the_cache_of_the_hubs_tools(
        self, put: Callable[[Path], Path], no_caches: Path, demo_model: Path
    ) -> None:
        folder = no_caches / f"models--{REPO.replace('/', '--')}"
        blob = put(folder / "blobs" / hashlib.sha256(demo_model.read_bytes()).hexdigest())
        path = folder / "snapshots" / ("a" * 40) / FILE
        path.parent.mkdir(parents=True)
        path.symlink_to(os.path.relpath(blob, path.parent))
        local = only(Catalogue((MINE,)))
        assert (local.place, local.record.words) == (Place.CACHE, "mine:F16")
        found = find(MINE, "f16")
        assert found is not None
        assert found.path == path

    def test_the_kinds_are_told_apart(self, put: Callable[[Path], Path]) -> None:
        for name in ("mmproj-F16.gguf", "mtp-demo.gguf", "demo.gguf"):
            put(models_dir() / REPO / name)
        kinds = {local.path.name: local.record.kind for local in library(NOTHING).models}
        assert kinds == {"mmproj-F16.gguf": "mmproj", "mtp-demo.gguf": "draft", "demo.gguf": "model"}
        assert find_companion(MINE, CompanionFile(file="mtp-demo.gguf")) == models_dir() / REPO / "mtp-demo.gguf"
        assert find_companion(MINE, CompanionFile(file="other.gguf")) is None


class TestFinding:
    def test_a_file_of_another_size_is_another(self, put: Callable[[Path], Path]) -> None:
        put(models_dir() / REPO / FILE)
        assert find(MINE) is not None
        other = replace(MINE, files=(replace(MINE.files[0], size_bytes=17),))
        assert find(other) is None

    def test_of_several_the_one_that_was_downloaded_last(self, put: Callable[[Path], Path]) -> None:
        files = tuple(ModelFile(quant=quant, file=f"demo-{quant}.gguf") for quant in ("Q4_K_M", "F16", "Q8_0"))
        model = replace(MINE, files=files)
        for age, file in enumerate(files):
            path = put(models_dir() / REPO / file.file)
            keep_record(Record(paths=(path,), model="mine", quant=file.quant, received_s=100.0 - abs(age - 1)))
        found = find(model)
        assert found is not None
        assert found.record.quant == "F16"
        assert [found.record.quant for quant in ("q8_0",) if (found := find(model, quant))] == ["Q8_0"]
        with pytest.raises(ModelUnknown):
            find(model, "Q9")

    def test_a_model_of_the_users_own_is_where_it_says(self, put: Callable[[Path], Path], tmp_path: Path) -> None:
        path = put(tmp_path / "mine" / FILE)
        own: ModelEntry = replace(MINE, repo=None, files=(ModelFile(quant="F16", file=str(path)),))
        found = find(own)
        assert found is not None
        assert (found.path, found.place) == (path, Place.ELSEWHERE)

    def test_what_a_user_names(self, put: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        path = put(models_dir() / REPO / FILE)
        models = library(Catalogue((MINE,))).models
        monkeypatch.chdir(path.parent)
        for text in ("mine", "mine:F16", "MINE:f16", f"{REPO}:{FILE}", str(path), FILE, f"./{FILE}", "all"):
            assert named(models, text) == list(models), text
        with pytest.raises(ModelMissing, match="No model other is on this machine"):
            named(models, "other")

    @pytest.mark.parametrize(
        ("name", "count"),
        [("x.gguf", 1), ("x-00002-of-00003.gguf", 3), ("d/x-00001-of-00002.gguf", 2), ("x-00001-of-00000.gguf", 1)],
    )
    def test_the_parts_by_name(self, name: str, count: int) -> None:
        names = split_names(name)
        assert len(names) == count
        assert (name in names) is True


class TestVerifying:
    async def test_a_file_is_good_while_it_is_what_it_was(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / FILE)
        (first,) = await verify(only())
        assert first.outcome is Outcome.UNKNOWN
        assert only().state is State.GOOD
        told: list[int] = []
        (second,) = await verify(only(), told.append)
        assert (second.outcome, second.expected) == (Outcome.GOOD, first.sha256)
        assert told[-1] == path.stat().st_size

    async def test_a_byte_that_changes_is_noticed(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / FILE)
        await verify(only())
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        os.utime(path, ns=(1, 1))
        assert only().state is State.TOUCHED
        (result,) = await verify(only())
        assert result.outcome is Outcome.CHANGED
        assert only().state is State.DAMAGED
        (again,) = await verify(only())
        assert again.outcome is Outcome.CHANGED

    async def test_what_is_known_to_be_damaged_is_not_served(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / REPO / FILE)
        file = replace(MINE.files[0], sha256="0" * 64)
        catalogue = Catalogue((replace(MINE, files=(file,)),))
        unverified = locate("mine:F16", catalogue)
        assert unverified is not None
        assert unverified.path == path
        await verify(only(catalogue))
        for name in ("mine", "mine:F16", f"{REPO}:{FILE}"):
            damaged = locate(name, catalogue)
            assert damaged is not None
            with pytest.raises(ModelBroken, match="is damaged: its SHA-256 is not what it should be") as caught:
                damaged.path  # noqa: B018
            assert caught.value.hint == f"`mtp-launcher models remove {path}`, then `mtp-launcher pull {name}`."

    async def test_nor_by_its_path_nor_beside_a_model(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / REPO / FILE)
        assert locate(str(path), NOTHING) is None
        keep_record(Record(paths=(path,), sha256=("0" * 64,), repo=REPO, file=FILE, received_s=1.0))
        await verify(only())
        with pytest.raises(ModelBroken, match="is damaged") as caught:
            locate(str(path), NOTHING)
        assert caught.value.hint == f"`mtp-launcher models remove {path}`, then `mtp-launcher pull {REPO}:{FILE}`."
        keep_record(Record(paths=(path,), sha256=("0" * 64,), received_s=1.0))
        with pytest.raises(ModelBroken, match="then get it again"):
            refuse_damaged(path)

    async def test_a_file_that_changes_while_it_is_read_is_not_taken_for_verified(
        self, put: Callable[[Path], Path]
    ) -> None:
        path = put(models_dir() / FILE)

        def change(_done: int) -> None:
            os.utime(path, ns=(1, 1))

        await verify(only(), change)
        assert only().state is State.TOUCHED

    async def test_the_catalogues_checksum_counts(self, put: Callable[[Path], Path], demo_model: Path) -> None:
        put(models_dir() / REPO / FILE)
        right = hashlib.sha256(demo_model.read_bytes()).hexdigest()
        model = replace(MINE, files=(replace(MINE.files[0], sha256=right),))
        (result,) = await verify(only(Catalogue((model,))))
        assert result.outcome is Outcome.GOOD

    async def test_one_that_is_gone(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / FILE)
        keep_record(Record(paths=(path, path.with_name("other.gguf")), received_s=1.0))
        results = await verify(only())
        assert [each.outcome for each in results] == [Outcome.UNKNOWN, Outcome.MISSING]
        assert only().state is State.MISSING


class TestRemoving:
    def test_the_files_and_what_is_empty_then(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / REPO / "BF16" / FILE)
        size = path.stat().st_size
        assert remove(only()) == size
        assert not (models_dir() / "owner").exists()
        assert models_dir().exists()
        assert library(NOTHING).models == ()

    def test_what_else_is_there_stays(self, put: Callable[[Path], Path]) -> None:
        put(models_dir() / REPO / FILE)
        notes = models_dir() / REPO / "notes.txt"
        notes.write_text("mine")
        remove(only())
        assert notes.exists()

    def test_a_file_elsewhere(self, put: Callable[[Path], Path], tmp_path: Path) -> None:
        path = put(tmp_path / "elsewhere" / FILE)
        keep_record(Record(paths=(path,), received_s=1.0))
        assert only().place is Place.ELSEWHERE
        remove(only())
        assert not path.exists()
        assert path.parent.exists()


class TestTheIndex:
    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 9}', b'{"records": [{"paths": []}]}', b"\xff"])
    def test_a_damaged_one_is_set_aside_and_the_folder_read(self, content: bytes, put: Callable[[Path], Path]) -> None:
        put(models_dir() / REPO / FILE)
        only()
        index_path().write_bytes(content)
        found = library(Catalogue((MINE,)))
        assert str(index_path()) in (found.notice or "")
        assert [local.record.words for local in found.models] == ["mine:F16"]
        assert library(NOTHING).notice is None
        assert index_path().with_name("library.json.bad").read_bytes() == content

    def test_a_hash_counts_only_for_the_file_as_it_was(self, put: Callable[[Path], Path]) -> None:
        path = put(models_dir() / FILE)
        keep_hash(path, "a" * 64, path.stat())
        assert only().state is State.GOOD
        path.touch()
        os.utime(path, ns=(5, 5))
        assert only().state is State.TOUCHED

    def test_several_processes_at_once_lose_nothing(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from launcher.models.library_index import Record, keep_record\n"
            "for number in range(10): keep_record(Record(paths=(Path(sys.argv[1], str(number)),), received_s=1.0))"
        )
        workers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)]) for name in ("a", "b", "c")]
        assert [worker.wait(30) for worker in workers] == [0, 0, 0]
        assert len(read_index()[0].records) == 30
