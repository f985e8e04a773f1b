"""Helpers of the tests of downloads: the demo model in a repository of the fake hub, and in caches."""

import asyncio
import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from launcher.fetch.transfer import TransferSettings
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.download_target import parse_target
from launcher.models.pull import PullResult, pull_model
from tests.conftest import Hub

COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"
QUICK = TransferSettings(attempts=1, backoff_s=0.01, stall_s=5.0)
FILE = "demo-F16.gguf"
DEMO = next(model for model in shipped_models() if model.id == "demo")


def entry(repo: str, **changes: object) -> ModelEntry:
    """The catalogue's description of the demo model as if it were on the hub."""
    file = ModelFile(quant="F16", file=FILE)
    given = {"id": "mine", "repo": repo, "revision": COMMIT, "files": (file,), "geometry": DEMO.geometry}
    return replace(DEMO, **(given | changes))  # type: ignore[arg-type]


def catalogue(*entries: ModelEntry) -> Catalogue:
    return Catalogue(entries)


async def get(text: str, *entries: ModelEntry, to: Path | None = None, **how: object) -> PullResult:
    target = await asyncio.to_thread(parse_target, text, catalogue(*entries), **how)  # type: ignore[arg-type]
    return await pull_model(target, to=to, settings=QUICK)


def methods(hub: Hub) -> list[tuple[str, str]]:
    """The server and the method of each request, in order."""
    return [(each["server"], each["method"]) for each in hub.requests()]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cache_content(tmp_path: Path, repo: str, content: Path, *, claims: str | None = None, file: str = FILE) -> Path:
    """Lay a file into the cache of the hub's tools, under a name that claims its hash."""
    folder = tmp_path / "hf" / "hub" / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / (claims or sha256(content))
    path = folder / "snapshots" / COMMIT / file
    blob.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(content, blob)
    path.symlink_to(os.path.relpath(blob, path.parent))
    return path
