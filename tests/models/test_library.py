"""The models on this machine: listed, found, verified and removed."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import ModelBroken, ModelMissing, ModelUnexpected, ModelUnknown
from launcher.base.paths import models_dir
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.gguf import GgufModel, read_model
from launcher.models.library import (
    LocalModel,
    Outcome,
    Place,
    State,
    find_companion,
    find_entry,
    find_file,
    find_local_model,
    list_library,
    remove_model,
    select_models,
    share_snapshot,
    split_names,
    verify_model,
)
from launcher.models.library_index import Record, index_path, read_index, store_hash, store_record
from launcher.models.locate import find_named, refuse_damaged, select_model
from tests.models.test_gguf_split import write_split
from tools.sparse_models.models import model as make_sparse_model
from tools.sparse_models.write import write

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
def copy_demo(demo_model: Path) -> Callable[[Path], Path]:
    """Copy the demo model to a place."""

    def copy(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, path)
        return path

    return copy


def find_only_model(catalogue: Catalogue = NOTHING) -> LocalModel:
    (local,) = list_library(catalogue).models
    return local


class TestAnotherModelUnderItsName:
    """A file was cut off, renamed, or put into a cache by hand."""

    NINE = next(model for model in shipped_models() if model.id == "qwen3.5-9b-mtp")
    SHIPPED = Catalogue((NINE,))
    NAME = "qwen3.5-9b-mtp:Q4_K_M"

    @pytest.fixture
    def lying(self, no_caches: Path, copy_demo: Callable[[Path], Path]) -> Path:
        """The demo model, as a cache of the hub's tools has the 9B."""
        file = self.NINE.file("Q4_K_M")
        assert file is not None
        assert self.NINE.repo is not None
        folder = no_caches / f"models--{self.NINE.repo.replace('/', '--')}" / "snapshots" / ("b" * 40)
        return copy_demo(folder / file.file)

    def test_another_file_with_the_name_of_a_model_is_reported(self, lying: Path) -> None:
        for _ in range(2):  # the second time the file is read from the index
            named = find_named(self.NAME, self.SHIPPED)
            assert named is not None
            assert named.local is None
            with pytest.raises(ModelUnexpected, match=r"its architecture is qwen35moe in place of qwen35\.") as error:
                _ = named.path
            assert str(lying) in error.value.title
            assert "`mtp-launcher pull qwen3.5-9b-mtp:Q4_K_M` downloads the right one." in error.value.hint
            assert find_local_model(self.NINE) is None
            (local,) = list_library(self.SHIPPED).models
            assert (local.path, local.record.model, local.record.quant) == (lying, None, "Q4_K_M")

    def test_a_wrong_index_entry_is_not_trusted(self, lying: Path) -> None:
        size = lying.stat().st_size
        store_record(Record(paths=(lying,), bytes=size, model="qwen3.5-9b-mtp", quant="Q4_K_M", repo=self.NINE.repo))
        assert find_local_model(self.NINE, "Q4_K_M") is None
        named = find_named(self.NAME, self.SHIPPED)
        assert named is not None
        assert named.misnamed is not None
        assert named.misnamed[0] == lying

    def test_another_file_with_the_name_is_identified_by_its_path(self, lying: Path) -> None:
        assert find_entry(self.SHIPPED, lying) is None
        subject = select_model(str(lying), self.SHIPPED)
        assert (subject.entry.id, subject.path) == (str(lying), lying)

    def test_a_newer_upload_counts_as_the_model(self, lying: Path) -> None:
        lying.unlink()
        write(lying, "Qwen3.5 9B", make_sparse_model("qwen35-9b-q4_k_m"))  # as published, except for the size
        subject = select_model(str(lying), self.SHIPPED)
        assert (subject.entry.id, subject.file) == ("qwen3.5-9b-mtp", self.NINE.file("Q4_K_M"))


class TestContents:
    def test_an_empty_folder_has_no_models(self, home: Path) -> None:
        assert list_library(NOTHING).models == ()
        assert find_local_model(MINE) is None
        assert not (home / "data").exists()

    def test_a_copied_file_is_found(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / REPO / FILE)
        local = find_only_model(Catalogue((MINE,)))
        record = local.record
        assert (record.path, record.repo, record.file) == (path, REPO, FILE)
        assert (record.model, record.quant, record.label) == ("mine", "F16", "mine:F16")
        assert (record.head, record.received_s, record.bytes) == ("present", None, path.stat().st_size)
        assert (local.state, local.place, local.verified_s) == (State.UNVERIFIED, Place.OURS, None)
        unknown = find_only_model()
        assert unknown == local  # the header is read only once

    def test_an_unknown_file_is_listed(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / "loose.gguf")
        record = find_only_model().record
        assert (record.repo, record.model, record.label) == (None, None, str(path))

    def test_a_changed_file_is_read_again(self, copy_demo: Callable[[Path], Path], headless_model: Path) -> None:
        path = copy_demo(models_dir() / FILE)
        assert find_only_model().record.head == "present"
        shutil.copy(headless_model, path)
        assert find_only_model().record.head == "none"

    def test_an_invalid_file_is_listed_as_such(self) -> None:
        models_dir().mkdir(parents=True)
        (models_dir() / "x.gguf").write_bytes(b"<html>")
        (models_dir() / "y.gguf.part").write_bytes(b"GGUF")
        (models_dir() / "imatrix_unsloth.gguf").write_bytes(b"GGUF")
        for local, kind in zip(list_library(NOTHING).models, ("model", "other"), strict=True):
            assert local.record.kind == kind  # by its name, as long as nothing else is known
            assert local.problem
            assert local.record.head is None

    def test_a_file_whose_end_is_missing_is_incomplete(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1_000])
        local = find_only_model()
        assert (local.state, local.record.head) == (State.INCOMPLETE, "present")
        assert 0 < local.missing_bytes <= 1_000
        assert f"{local.missing_bytes:,} bytes are missing" in local.problem
        assert find_only_model() == local  # the header is read only once
        path.write_bytes(whole)  # another program has downloaded the rest
        local = find_only_model()
        assert (local.state, local.missing_bytes, local.problem) == (State.UNVERIFIED, 0, "")

    def test_a_downloaded_file_that_was_cut_later_is_incomplete(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / REPO / FILE)
        store_record(Record(paths=(path,), bytes=path.stat().st_size, received_s=1.0))
        assert find_only_model().state is State.UNVERIFIED
        path.write_bytes(path.read_bytes()[:-1_000])
        assert (find_only_model().state, find_only_model().missing_bytes) == (State.INCOMPLETE, 1_000)

    def test_a_file_that_an_earlier_version_listed_is_read_again_once(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        path.write_bytes(path.read_bytes()[:-1_000])
        store_record(Record(paths=(path,), bytes=path.stat().st_size, head="present"))
        assert find_only_model().state is State.INCOMPLETE

    def test_a_found_file_is_forgotten_when_it_is_gone(self, copy_demo: Callable[[Path], Path]) -> None:
        copy_demo(models_dir() / FILE)
        assert find_only_model().path.name == FILE
        (models_dir() / FILE).unlink()
        assert list_library(NOTHING).models == ()
        assert read_index()[0].records == []

    def test_a_missing_download_is_reported(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        store_record(Record(paths=(path,), received_s=1.0))
        path.unlink()
        assert find_only_model().state is State.MISSING
        assert find_local_model(MINE) is None

    def test_a_file_that_left_its_cache_is_forgotten(self, no_caches: Path) -> None:
        store_record(Record(paths=(no_caches / "models--a--b" / FILE,), repo="a/b", file=FILE, received_s=1.0))
        assert list_library(NOTHING).models == ()
        assert read_index()[0].records == []

    def test_a_missing_download_can_be_forgotten(self) -> None:
        store_record(Record(paths=(models_dir() / REPO / FILE,), received_s=1.0))
        assert remove_model(find_only_model()) == 0
        assert list_library(NOTHING).models == ()

    def test_separate_models_named_like_parts_are_listed_separately(self, copy_demo: Callable[[Path], Path]) -> None:
        for name in split_names("x-00001-of-00002.gguf"):
            copy_demo(models_dir() / REPO / name)
        assert "do not belong together" in (find_only_model().record.problem or "")

    def test_a_file_that_is_downloaded_while_found_keeps_its_origin(
        self, copy_demo: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        received = Record(
            paths=(copy_demo(models_dir() / REPO / FILE),), repo=REPO, revision="r", file=FILE, received_s=1.0
        )

        def read_meanwhile(path: Path) -> GgufModel:
            store_record(received)  # a pull in another process comes to its end
            return read_model(path)

        monkeypatch.setattr("launcher.models.library.read_model", read_meanwhile)
        assert find_only_model().record == received
        assert read_index()[0].records == [received]

    def test_a_split_model_is_listed_once(self) -> None:
        first = write_split(models_dir() / REPO)
        record = find_only_model().record
        assert record.path == first
        assert len(record.paths) == 3
        assert record.head == "present"
        assert find_file(REPO, first.name) is not None

    def test_a_split_model_with_a_missing_part_is_reported(self) -> None:
        first = write_split(models_dir() / REPO)
        first.with_name(first.name.replace("-00001-", "-00002-")).unlink()
        assert "00002-of-00003" in (find_only_model().record.problem or "")
        assert find_file(REPO, first.name) is None

    def test_the_cache_of_the_hubs_tools_is_listed(
        self, copy_demo: Callable[[Path], Path], no_caches: Path, demo_model: Path
    ) -> None:
        folder = no_caches / f"models--{REPO.replace('/', '--')}"
        blob = copy_demo(folder / "blobs" / hashlib.sha256(demo_model.read_bytes()).hexdigest())
        path = folder / "snapshots" / ("a" * 40) / FILE
        path.parent.mkdir(parents=True)
        path.symlink_to(os.path.relpath(blob, path.parent))
        local = find_only_model(Catalogue((MINE,)))
        assert (local.place, local.record.label) == (Place.CACHE, "mine:F16")
        found = find_local_model(MINE, "f16")
        assert found is not None
        assert found.path == path

    def test_companions_are_found_by_their_origin(self, copy_demo: Callable[[Path], Path]) -> None:
        copy_demo(models_dir() / REPO / "mtp-demo.gguf")
        assert find_companion(MINE, CompanionFile(file="mtp-demo.gguf")) == models_dir() / REPO / "mtp-demo.gguf"
        assert find_companion(MINE, CompanionFile(file="other.gguf")) is None


class TestFinding:
    def test_a_file_of_another_size_does_not_match(self, copy_demo: Callable[[Path], Path]) -> None:
        copy_demo(models_dir() / REPO / FILE)
        assert find_local_model(MINE) is not None
        other = replace(MINE, files=(replace(MINE.files[0], size_bytes=17),))
        assert find_local_model(other) is None

    def test_a_shared_snapshot_is_used_within_its_block(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / "elsewhere.gguf")
        with share_snapshot():
            assert find_local_model(MINE) is None
            store_record(Record(paths=(path,), model="mine", quant="F16", received_s=1.0))
            assert find_local_model(MINE) is None
        found = find_local_model(MINE)
        assert found is not None
        assert found.path == path

    def test_the_last_of_several_downloads_is_chosen(self, copy_demo: Callable[[Path], Path]) -> None:
        files = tuple(ModelFile(quant=quant, file=f"demo-{quant}.gguf") for quant in ("Q4_K_M", "F16", "Q8_0"))
        model = replace(MINE, files=files)
        for age, file in enumerate(files):
            path = copy_demo(models_dir() / REPO / file.file)
            store_record(Record(paths=(path,), model="mine", quant=file.quant, received_s=100.0 - abs(age - 1)))
        found = find_local_model(model)
        assert found is not None
        assert found.record.quant == "F16"
        assert [found.record.quant for quant in ("q8_0",) if (found := find_local_model(model, quant))] == ["Q8_0"]
        with pytest.raises(ModelUnknown):
            find_local_model(model, "Q9")

    def test_a_local_model_of_the_user_is_at_its_path(self, copy_demo: Callable[[Path], Path], tmp_path: Path) -> None:
        path = copy_demo(tmp_path / "mine" / FILE)
        own: ModelEntry = replace(MINE, repo=None, files=(ModelFile(quant="F16", file=str(path)),))
        found = find_local_model(own)
        assert found is not None
        assert (found.path, found.place) == (path, Place.ELSEWHERE)

    def test_names_of_users_are_resolved(
        self, copy_demo: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = copy_demo(models_dir() / REPO / FILE)
        models = list_library(Catalogue((MINE,))).models
        monkeypatch.chdir(path.parent)
        for text in ("mine", "mine:F16", "MINE:f16", f"{REPO}:{FILE}", str(path), FILE, f"./{FILE}", "all"):
            assert select_models(models, text) == list(models), text
        with pytest.raises(ModelMissing, match="Model other is not on this computer"):
            select_models(models, "other")

    @pytest.mark.parametrize(
        ("name", "count"),
        [("x.gguf", 1), ("x-00002-of-00003.gguf", 3), ("d/x-00001-of-00002.gguf", 2), ("x-00001-of-00000.gguf", 1)],
    )
    def test_parts_are_found_by_name(self, name: str, count: int) -> None:
        names = split_names(name)
        assert len(names) == count
        assert (name in names) is True


class TestVerifying:
    async def test_an_unchanged_file_is_good(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        (first,) = await verify_model(find_only_model())
        assert first.outcome is Outcome.UNKNOWN
        assert find_only_model().state is State.GOOD
        received: list[int] = []
        (second,) = await verify_model(find_only_model(), received.append)
        assert (second.outcome, second.expected) == (Outcome.GOOD, first.sha256)
        assert received[-1] == path.stat().st_size

    async def test_a_changed_byte_is_detected(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        await verify_model(find_only_model())
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        os.utime(path, ns=(1, 1))
        assert find_only_model().state is State.TOUCHED
        (result,) = await verify_model(find_only_model())
        assert result.outcome is Outcome.CHANGED
        assert find_only_model().state is State.DAMAGED
        (again,) = await verify_model(find_only_model())
        assert again.outcome is Outcome.CHANGED

    async def test_a_file_known_as_damaged_is_not_served(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / REPO / FILE)
        file = replace(MINE.files[0], sha256="0" * 64)
        catalogue = Catalogue((replace(MINE, files=(file,)),))
        unverified = find_named("mine:F16", catalogue)
        assert unverified is not None
        assert unverified.path == path
        await verify_model(find_only_model(catalogue))
        for name in ("mine", "mine:F16", f"{REPO}:{FILE}"):
            damaged = find_named(name, catalogue)
            assert damaged is not None
            with pytest.raises(ModelBroken, match="is damaged: its SHA-256 does not match") as caught:
                damaged.path  # noqa: B018
            assert caught.value.hint == f"`mtp-launcher models remove {path}`, then `mtp-launcher pull {name}`."

    async def test_a_file_known_as_damaged_is_refused_by_its_path_and_beside_a_model(
        self, copy_demo: Callable[[Path], Path]
    ) -> None:
        path = copy_demo(models_dir() / REPO / FILE)
        assert find_named(str(path), NOTHING) is None
        store_record(Record(paths=(path,), sha256=("0" * 64,), repo=REPO, file=FILE, received_s=1.0))
        await verify_model(find_only_model())
        with pytest.raises(ModelBroken, match="is damaged") as caught:
            find_named(str(path), NOTHING)
        assert caught.value.hint == f"`mtp-launcher models remove {path}`, then `mtp-launcher pull {REPO}:{FILE}`."
        store_record(Record(paths=(path,), sha256=("0" * 64,), received_s=1.0))
        with pytest.raises(ModelBroken, match="then get it again"):
            refuse_damaged(path)

    async def test_a_file_that_changes_during_verification_is_not_verified(
        self, copy_demo: Callable[[Path], Path]
    ) -> None:
        path = copy_demo(models_dir() / FILE)

        def change(_done: int) -> None:
            os.utime(path, ns=(1, 1))

        await verify_model(find_only_model(), change)
        assert find_only_model().state is State.TOUCHED

    async def test_the_checksum_of_the_catalogue_counts(
        self, copy_demo: Callable[[Path], Path], demo_model: Path
    ) -> None:
        copy_demo(models_dir() / REPO / FILE)
        right = hashlib.sha256(demo_model.read_bytes()).hexdigest()
        model = replace(MINE, files=(replace(MINE.files[0], sha256=right),))
        (result,) = await verify_model(find_only_model(Catalogue((model,))))
        assert result.outcome is Outcome.GOOD

    async def test_a_missing_file_is_reported(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        store_record(Record(paths=(path, path.with_name("other.gguf")), received_s=1.0))
        results = await verify_model(find_only_model())
        assert [each.outcome for each in results] == [Outcome.UNKNOWN, Outcome.MISSING]
        assert find_only_model().state is State.MISSING


class TestRemoving:
    def test_files_and_emptied_folders_are_removed(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / REPO / "BF16" / FILE)
        size = path.stat().st_size
        assert remove_model(find_only_model()) == size
        assert not (models_dir() / "owner").exists()
        assert models_dir().exists()
        assert list_library(NOTHING).models == ()

    def test_other_files_are_not_removed(self, copy_demo: Callable[[Path], Path]) -> None:
        copy_demo(models_dir() / REPO / FILE)
        notes = models_dir() / REPO / "notes.txt"
        notes.write_text("mine")
        remove_model(find_only_model())
        assert notes.exists()

    def test_removing_a_file_elsewhere_keeps_its_folder(
        self, copy_demo: Callable[[Path], Path], tmp_path: Path
    ) -> None:
        path = copy_demo(tmp_path / "elsewhere" / FILE)
        store_record(Record(paths=(path,), received_s=1.0))
        assert find_only_model().place is Place.ELSEWHERE
        remove_model(find_only_model())
        assert not path.exists()
        assert path.parent.exists()


class TestIndex:
    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 9}', b'{"records": [{"paths": []}]}', b"\xff"])
    def test_a_damaged_index_is_renamed_and_rebuilt(self, content: bytes, copy_demo: Callable[[Path], Path]) -> None:
        copy_demo(models_dir() / REPO / FILE)
        find_only_model()
        index_path().write_bytes(content)
        found = list_library(Catalogue((MINE,)))
        assert str(index_path()) in (found.notice or "")
        assert [local.record.label for local in found.models] == ["mine:F16"]
        assert list_library(NOTHING).notice is None
        assert index_path().with_name("library.json.bad").read_bytes() == content

    def test_a_hash_counts_only_for_the_unchanged_file(self, copy_demo: Callable[[Path], Path]) -> None:
        path = copy_demo(models_dir() / FILE)
        store_hash(path, "a" * 64, path.stat())
        assert find_only_model().state is State.GOOD
        path.touch()
        os.utime(path, ns=(5, 5))
        assert find_only_model().state is State.TOUCHED

    def test_concurrent_processes_lose_no_entries(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from launcher.models.library_index import Record, store_record\n"
            "for number in range(10): store_record(Record(paths=(Path(sys.argv[1], str(number)),), received_s=1.0))"
        )
        workers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)]) for name in ("a", "b", "c")]
        assert [worker.wait(30) for worker in workers] == [0, 0, 0]
        assert len(read_index()[0].records) == 30
