"""The demo model that ships with the program: real engine operations, an MTP head, readable English."""

import hashlib
import lzma
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from launcher.base.errors import ModelBroken
from launcher.base.files import write_atomically
from launcher.base.paths import cache_dir, shipped

DEMO = "demo"
"""What a user writes in place of a model file."""


class _Description(BaseModel):
    name: str
    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DemoPreset:
    """How the demo model is started, and what is said with its figures (presets/demo.toml)."""

    context: int
    draft: int
    threads: int
    temperature: float
    speed_note: str


def demo_preset() -> DemoPreset:
    """Read presets/demo.toml."""
    model = tomllib.loads(shipped("presets", "demo.toml").read_text("utf-8"))["models"][0]
    preset = model["presets"][0]
    return DemoPreset(
        context=preset["ctx"],
        draft=preset["draft"],
        threads=preset["threads"],
        temperature=model["sampling"]["no_thinking"]["temperature"],
        speed_note=preset["note"],
    )


def unpack_demo_model() -> Path:
    """Return the path of the demo model, unpacked into the cache when it is not there or not whole.

    Raises ModelBroken when the shipped file is damaged.
    """
    folder = shipped("resources", "demo")
    about = _Description.model_validate_json((folder / "demo.json").read_bytes())
    path = cache_dir() / "demo" / about.sha256[:16] / about.file
    if path.is_file() and _sha256(path.read_bytes()) == about.sha256:
        return path
    try:
        data = lzma.decompress((folder / "demo.gguf.xz").read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise ModelBroken(f"The built-in demo model cannot be read: {error}.", "Install the program again.") from error
    if _sha256(data) != about.sha256:
        raise ModelBroken("The built-in demo model is damaged: its checksum differs.", "Install the program again.")
    write_atomically(path, data)
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
