"""Pulling models from the fake hub over real sockets: found, fetched, verified, checked, kept."""

import asyncio
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.base.errors import (
    BadOption,
    DownloadBroken,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
    ModelReplaced,
    ModelUnexpected,
    Refused,
)
from launcher.base.paths import models_dir
from launcher.base.progress import Phase, Progress
from launcher.engine.serve_options import ServeOptions
from launcher.fetch.retries import call_with_retries
from launcher.fetch.transfer import TransferSettings
from launcher.models.catalogue import CompanionFile, FilePart, ModelFile
from launcher.models.download_target import parse_target
from launcher.models.header_summary import load_summary
from launcher.models.library import find_companion, find_local_model, list_library
from launcher.models.library_index import read_index
from launcher.models.pull import pull_model, unfinished_bytes
from tests.conftest import Hub
from tests.models.pulling import COMMIT, DEMO, FILE, QUICK, catalogue, entry, get, methods, sha256
from tests.models.test_gguf_split import write_split
from tools.sparse_models.models import Model
from tools.sparse_models.models import model as make_sparse_model
from tools.sparse_models.write import write

PATIENT = replace(QUICK, attempts=4)


def small_model(tensors: Iterable[str]) -> Model:
    """A model of few bytes with the blocks and the head of another one."""
    return Model(BIG.architecture, BIG.metadata, dict.fromkeys(tensors, ((32,), "F32")))


BIG = make_sparse_model("qwen35-27b-q4_k_m")
WHOLE = small_model(BIG.tensors)
TRUNK = WHOLE.without_head()
HEAD = small_model(name for name in BIG.tensors if name.startswith("blk.64.") or not name.startswith("blk."))


class TestHubFile:
    async def test_a_model_is_downloaded_verified_and_added_to_the_library(
        self, repo: str, hub: Hub, demo_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_consent")
        pulled = await get(f"{repo}:{FILE}")
        requests = hub.requests()
        assert pulled.path == models_dir() / "pull" / "Demo-GGUF" / FILE
        assert pulled.path.read_bytes() == demo_model.read_bytes()
        assert [path.name for path in pulled.path.parent.iterdir()] == [FILE]
        (file,) = pulled.files
        assert (file.sha256, file.bytes) == (sha256(demo_model), demo_model.stat().st_size)
        assert (file.origin, file.received_bytes, file.resumed_bytes) == ("downloaded", file.bytes, 0)
        assert (pulled.checked.head, pulled.checked.problem, pulled.notes) == ("present", None, ())
        record = pulled.record
        assert (record.repo, record.revision, record.file, record.quant) == (repo, COMMIT, FILE, "F16")
        assert {each["server"] for each in requests if "Authorization" in each} == {"hub"}
        summary = load_summary(file.sha256)
        assert summary is not None
        assert summary.geometry == DEMO.geometry

    async def test_a_second_pull_downloads_and_reads_nothing(self, repo: str, hub: Hub) -> None:
        first = await get(f"{repo}:{FILE}")
        before = read_index()[0].hashes
        hub.requests()
        again = await get(f"{repo}:{FILE}")
        assert methods(hub) == [("hub", "HEAD")]
        assert [file.origin for file in again.files] == ["here"]
        assert again.path == first.path
        assert read_index()[0].hashes == before

    async def test_another_folder_can_be_named(self, repo: str, tmp_path: Path) -> None:
        pulled = await get(f"{repo}:{FILE}", to=tmp_path / "elsewhere")
        assert pulled.path == tmp_path / "elsewhere" / FILE
        assert not models_dir().exists()

    async def test_the_folder_can_be_configured(
        self, repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MTP_LAUNCHER_MODELS", str(tmp_path / "models"))
        assert (await get(f"{repo}:{FILE}")).path == tmp_path / "models" / repo / FILE

    async def test_another_file_with_the_same_name_is_not_overwritten(self, repo: str) -> None:
        there = models_dir() / repo / FILE
        there.parent.mkdir(parents=True)
        there.write_bytes(b"mine")
        with pytest.raises(ModelReplaced, match="exists but is not") as caught:
            await get(f"{repo}:{FILE}")
        assert "--to" in caught.value.hint
        assert there.read_bytes() == b"mine"

    async def test_wrong_bytes_are_never_used(self, repo: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("swaps"))
        with pytest.raises(DownloadBroken):
            await get(f"{repo}:{FILE}")
        assert not (models_dir() / repo / FILE).exists()
        assert read_index()[0].records == []

    async def test_another_kind_of_file_is_reported(self, repo: str, hub: Hub) -> None:
        (hub.folder / repo / "page.gguf").write_bytes(b"<html>")
        with pytest.raises(ModelBroken):
            await get(f"{repo}:page.gguf")
        (record,) = read_index()[0].records
        assert record.problem

    @pytest.mark.usefixtures("hub")
    async def test_a_gated_repository_is_distinguished(self) -> None:
        with pytest.raises(Refused, match="is gated"):
            await get("gated/model:x.gguf")
        with pytest.raises(Refused, match="denies access"):
            await get("secret/model:x.gguf")

    @pytest.mark.parametrize("name", [":f16", ":F16", ""])
    async def test_a_quantisation_can_be_named_in_place_of_a_file(self, name: str, repo: str) -> None:
        assert (await get(f"{repo}{name}")).path.name == FILE

    @pytest.mark.parametrize("name", [":Q4_K_M", ""])
    async def test_several_matching_files_are_listed(self, name: str, repo: str, hub: Hub) -> None:
        (hub.folder / repo / "demo-Q8_0.gguf").write_bytes(b"GGUF")
        (hub.folder / repo / "mmproj-F16.gguf").write_bytes(b"GGUF")
        with pytest.raises(ModelMissing) as caught:
            await get(f"{repo}{name}")
        assert f"{FILE}, demo-Q8_0.gguf." in caught.value.hint


class TestRateLimit:
    @pytest.mark.cases(1)
    @pytest.mark.parametrize(
        ("name", "status", "why"),
        [(f":{FILE}", 503, "HTTP status 503"), (":F16", 429, "received too many requests")],
    )
    async def test_a_temporary_error_is_retried_and_reported(
        self, repo: str, hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, status: int, why: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults(f"{status}*1"))
        collected: list[Progress] = []
        notes: list[str] = []
        target = await call_with_retries(lambda: parse_target(f"{repo}{name}", catalogue()), PATIENT, notes.append)
        assert (await pull_model(target, on_progress=collected.append, settings=PATIENT)).checked.problem is None
        waits = [each for each in collected if each.phase is Phase.WAITING]
        assert waits[0].item == FILE
        for note in (waits[0].note, *notes):
            assert why in note
            assert note.endswith("Next try in 1 s.")
        assert bool(notes) == (name == ":F16")  # the hub is asked for the list of files first, which waits as well

    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_persistent_error_is_reported(
        self, repo: str, hub: Hub, monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        target = await asyncio.to_thread(parse_target, f"{repo}:{FILE}", catalogue())
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults(f"{status}*9"))
        settings = replace(PATIENT, attempts=2)
        with pytest.raises(Refused) as refused:
            await pull_model(target, settings=settings)
        assert refused.value.status == status
        assert methods(hub) == [("hub", "HEAD")] * 2

    async def test_other_errors_are_not_retried(self, repo: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("502"))
        with pytest.raises(Refused, match="502"):
            await pull_model(await asyncio.to_thread(parse_target, f"{repo}:{FILE}", catalogue()), settings=PATIENT)
        assert methods(hub) == [("hub", "HEAD")]


class TestPauseAndResume:
    async def test_received_data_is_not_downloaded_again(
        self, repo: str, hub: Hub, demo_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("stalls"))
        target = await asyncio.to_thread(parse_target, f"{repo}:{FILE}", catalogue())
        half, size = asyncio.Event(), demo_model.stat().st_size

        def watch(progress: Progress) -> None:
            assert progress.bytes == size
            if progress.done_bytes >= size // 2:
                half.set()

        work = asyncio.create_task(pull_model(target, on_progress=watch, settings=TransferSettings()))
        await asyncio.wait_for(half.wait(), 120)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        kept = unfinished_bytes(target)
        assert size // 2 <= kept + 2**20
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        pulled = await get(f"{repo}:{FILE}")
        assert pulled.resumed_bytes == kept
        assert pulled.files[0].received_bytes == size - kept
        assert pulled.path.read_bytes() == demo_model.read_bytes()


class TestCatalogueModel:
    async def test_a_downloaded_model_is_found_by_its_id(self, repo: str, demo_model: Path) -> None:
        mine = entry(repo, files=(replace(entry(repo).files[0], sha256=sha256(demo_model)),))
        pulled = await get("mine:f16", mine)
        assert pulled.checked.problem is None
        assert (pulled.record.model, pulled.record.quant, pulled.record.label) == ("mine", "F16", "mine:F16")
        for quant in (None, "F16", "f16"):
            found = find_local_model(mine, quant)
            assert found is not None
            assert found.path == pulled.path

    async def test_a_file_that_differs_from_its_catalogue_entry_is_refused(self, repo: str, hub: Hub) -> None:
        file = replace(entry(repo).files[0], sha256="0" * 64, size_bytes=17)
        mine = entry(repo, files=(file,))
        with pytest.raises(
            ModelReplaced, match=r"from the file in the catalogue: [0-9,]+ bytes in place of 17 and"
        ) as caught:
            await get("mine:F16", mine)
        assert "--revision main" in caught.value.hint
        assert ("store", "GET") not in methods(hub)
        pulled = await get("mine:F16", mine, revision="main")
        assert pulled.notes == ()

    async def test_a_file_named_directly_may_differ_from_its_catalogue_entry_with_a_note(self, repo: str) -> None:
        mine = entry(repo, files=(replace(entry(repo).files[0], sha256="0" * 64),))
        pulled = await get(f"{repo}:{FILE}", mine)
        (note,) = pulled.notes
        assert "differs from the file in the catalogue" in note
        assert pulled.record.model == "mine"

    async def test_a_missing_revision_is_reported(self, repo: str) -> None:
        with pytest.raises(ModelMissing, match="has no revision 000") as caught:
            await get("mine:F16", entry(repo, revision="0" * 40))
        assert "--revision main" in caught.value.hint

    async def test_a_separate_draft_file_is_downloaded_too(self, repo: str, hub: Hub, demo_model: Path) -> None:
        shutil.copy(demo_model, hub.folder / repo / "mtp-demo.gguf")
        draft = CompanionFile(file="mtp-demo.gguf", size_bytes=demo_model.stat().st_size)
        mine = entry(repo, speculation="draft-file", draft=draft)
        pulled = await get("mine:F16", mine)
        assert [(file.kind, file.path.name) for file in pulled.files] == [("model", FILE), ("draft", "mtp-demo.gguf")]
        assert find_companion(mine, draft) == pulled.files[1].path
        kinds = [(each.record.kind, each.record.file_kind) for each in list_library(catalogue(mine)).models]
        assert kinds == [("model", "model"), ("draft", None)]  # by its header it is a model, too

    async def test_projectors_are_downloaded_on_request_only(self, repo: str, hub: Hub) -> None:
        shutil.copy(hub.folder / repo / FILE, hub.folder / repo / "mmproj-F16.gguf")
        mine = entry(repo, mmproj=(CompanionFile(file="mmproj-F16.gguf"),))
        assert len((await get("mine:F16", mine)).files) == 1
        pulled = await get("mine:F16", mine, vision=True)
        assert [file.kind for file in pulled.files] == ["model", "mmproj"]
        (note,) = pulled.notes
        assert "not a vision projector" in note
        with pytest.raises(BadOption, match="No vision projector"):
            await get("mine:F16", entry(repo), vision=True)


class TestHeaderCheck:
    async def test_a_head_missing_in_another_upload_is_reported(
        self, repo: str, hub: Hub, headless_model: Path
    ) -> None:
        shutil.copy(headless_model, hub.folder / repo / FILE)
        mine = entry(repo)
        pulled = await get("mine:F16", mine)
        assert isinstance(pulled.checked.problem, ModelHasNoHead)
        assert "--draft 0" in pulled.checked.problem.hint
        assert str(pulled.path) in pulled.checked.problem.hint
        assert pulled.path.exists()
        found = find_local_model(mine)
        assert found is not None
        assert found.record.head == "none"
        assert "should have an MTP head" in (found.record.problem or "")

    async def test_a_name_that_promises_a_head_is_checked(self, hub: Hub, repo: str, headless_model: Path) -> None:
        shutil.copy(headless_model, hub.folder / repo / "demo-MTP-Q4_0.gguf")
        shutil.copy(headless_model, hub.folder / repo / "demo-Q4_0.gguf")
        assert isinstance((await get(f"{repo}:demo-MTP-Q4_0.gguf")).checked.problem, ModelHasNoHead)
        assert (await get(f"{repo}:demo-Q4_0.gguf")).checked.problem is None

    async def test_another_model_under_the_name_is_reported(self, repo: str) -> None:
        assert DEMO.geometry is not None
        mine = entry(repo, geometry=replace(DEMO.geometry, layers=40, hidden=2_048))
        problem = (await get("mine:F16", mine)).checked.problem
        assert isinstance(problem, ModelUnexpected)
        assert "layers 4 in place of 40, hidden 384 in place of 2048" in problem.title


class TestDraftFile:
    @pytest.fixture
    def repo(self, hub: Hub) -> Iterator[str]:
        """A repository with a model without a head, and with its head in two files."""
        folder = hub.folder / "pull" / "Apart-MTP-GGUF"
        folder.mkdir(parents=True)
        write(folder / "trunk-Q8_0.gguf", "trunk", TRUNK)
        for name in ("mtp-trunk-BF16.gguf", "mtp-trunk-Q8_0.gguf"):
            write(folder / name, "head", HEAD)
        yield "pull/Apart-MTP-GGUF"
        shutil.rmtree(folder)

    @pytest.mark.parametrize("named", ["trunk-Q8_0.gguf", "Q8_0"])
    async def test_a_draft_file_is_downloaded_with_its_model(self, repo: str, named: str) -> None:
        received: list[Progress] = []
        target = await asyncio.to_thread(parse_target, f"{repo}:{named}", catalogue())
        pulled = await pull_model(target, on_progress=received.append, settings=QUICK)
        trunk, head = pulled.files
        assert [(file.kind, file.path.name) for file in pulled.files] == [
            ("model", "trunk-Q8_0.gguf"),
            ("draft", "mtp-trunk-Q8_0.gguf"),
        ]
        assert (pulled.checked.head, pulled.checked.problem, pulled.notes) == ("none", None, ())
        assert (received[-1].item_number, received[-1].item_count) == (2, 2)
        assert received[-1].done_bytes == received[-1].bytes == pulled.bytes
        assert make_unresolved_options(str(trunk.path), ServeOptions).draft_file == head.path
        records = {record.path.name: record for record in read_index()[0].records}
        assert records["trunk-Q8_0.gguf"].problem is None
        assert records["mtp-trunk-Q8_0.gguf"].kind == "draft"
        again = await pull_model(target, settings=QUICK)
        assert [file.origin for file in again.files] == ["here", "here"]

    async def test_a_draft_file_of_another_model_is_reported(self, repo: str, hub: Hub) -> None:
        other = Model(HEAD.architecture, {**HEAD.metadata, "embedding_length": 64}, HEAD.tensors)
        for name in ("mtp-trunk-BF16.gguf", "mtp-trunk-Q8_0.gguf"):
            write(hub.folder / repo / name, "head", other)
        pulled = await get(f"{repo}:trunk-Q8_0.gguf")
        assert isinstance(pulled.checked.problem, ModelHasNoHead)
        assert "mtp-trunk-Q8_0.gguf cannot draft for this model: it is the head of another model." in pulled.notes

    async def test_no_draft_file_is_searched_for_a_model_with_a_head(self, repo: str, hub: Hub) -> None:
        write(hub.folder / repo / "whole-Q4_0.gguf", "whole", WHOLE)
        pulled = await get(f"{repo}:whole-Q4_0.gguf")
        assert [file.path.name for file in pulled.files] == ["whole-Q4_0.gguf"]
        assert pulled.checked.head == "present"
        alone = await get(f"{repo}:mtp-trunk-BF16.gguf")
        assert [file.kind for file in alone.files] == ["draft"]


class TestSplitModel:
    @pytest.fixture
    def first_part(self, hub: Hub, repo: str) -> str:
        return f"parts/{write_split(hub.folder / repo / 'parts').name}"

    async def test_all_parts_are_downloaded_as_one_model(self, repo: str, first_part: str, hub: Hub) -> None:
        received: list[Progress] = []
        target = await asyncio.to_thread(parse_target, f"{repo}:{first_part}", catalogue())
        pulled = await pull_model(target, on_progress=received.append, settings=QUICK)
        assert [file.path.name for file in pulled.files] == [
            f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)
        ]
        assert pulled.checked.head == "present"
        assert pulled.bytes == sum(path.stat().st_size for path in (hub.folder / repo / "parts").iterdir())
        assert {each.item_count for each in received} == {3}
        assert {each.bytes for each in received} == {pulled.bytes}
        assert received[-1].done_bytes == pulled.bytes
        (local,) = list_library(catalogue()).models
        assert len(local.record.paths) == 3

    async def test_any_part_can_be_named(self, repo: str, first_part: str) -> None:
        pulled = await get(f"{repo}:{first_part.replace('-00001-', '-00002-')}")
        assert pulled.path.name == "model-00001-of-00003.gguf"
        assert len(pulled.files) == 3

    async def test_a_missing_part_is_reported(self, repo: str, first_part: str, hub: Hub) -> None:
        (hub.folder / repo / first_part.replace("-00001-", "-00003-")).unlink()
        hub.requests()
        with pytest.raises(ModelMissing, match="model-00003-of-00003"):
            await get(f"{repo}:{first_part}")
        assert ("store", "GET") not in methods(hub)

    async def test_a_part_of_another_model_is_reported(self, repo: str, first_part: str, hub: Hub) -> None:
        part = hub.folder / repo / first_part.replace("-00001-", "-00002-")
        shutil.copy(part.with_name(part.name.replace("-00002-", "-00003-")), part)
        with pytest.raises(ModelBroken, match="do not belong together"):
            await get(f"{repo}:{first_part}")

    async def test_separate_models_named_like_parts_are_separate(self, repo: str, hub: Hub, demo_model: Path) -> None:
        for number in (1, 2):
            shutil.copy(demo_model, hub.folder / repo / f"x-0000{number}-of-00002.gguf")
        with pytest.raises(ModelBroken, match="do not belong together"):
            await get(f"{repo}:x-00001-of-00002.gguf")
        (local,) = list_library(catalogue()).models
        assert "do not belong together" in (local.record.problem or "")

    async def test_the_catalogue_lists_its_parts(self, repo: str, first_part: str, hub: Hub) -> None:
        paths = sorted((hub.folder / repo / "parts").iterdir())
        parts = tuple(FilePart(file=f"parts/{path.name}", sha256=sha256(path)) for path in paths)
        file = ModelFile(quant="F32", file=first_part, parts=parts)
        pulled = await get("mine:F32", entry(repo, files=(file,), geometry=None))
        assert pulled.record.sha256 == tuple(part.sha256 for part in parts)
        wrong = (*parts[:2], replace(parts[2], sha256="0" * 64))
        with pytest.raises(ModelReplaced, match="00003-of-00003"):
            await get("mine:F32", entry(repo, files=(replace(file, parts=wrong),), geometry=None))
