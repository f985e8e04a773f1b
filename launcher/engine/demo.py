"""The demo model that ships with the program: small, with an MTP head and readable English output."""

import hashlib
import lzma
import tomllib
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import ModelBroken
from launcher.base.files import write_atomically
from launcher.base.messages import message
from launcher.base.paths import cache_dir, shipped_file
from launcher.base.validation import BaseModel

DEMO = "demo"
"""Model name of the demo model, accepted in place of a model file."""


class _DemoDescription(BaseModel):
    """The content of resources/demo/demo.json."""

    name: str
    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DemoPreset:
    """Recommended settings of the demo model, and a note on its speed (presets/demo.toml)."""

    context: int
    draft: int
    threads: int
    temperature: float
    speed_note: str


def read_demo_preset() -> DemoPreset:
    """Read the demo model's settings from presets/demo.toml."""
    model = tomllib.loads(shipped_file("presets", "demo.toml").read_text("utf-8"))["models"][0]
    preset = model["presets"][0]
    return DemoPreset(
        context=preset["ctx"],
        draft=preset["draft"],
        threads=preset["threads"],
        temperature=model["sampling"]["no_thinking"]["temperature"],
        speed_note=preset["note"],
    )


def unpack_demo_model() -> Path:
    """Return the path of the demo model; unpack it into the cache folder first if it is missing or damaged there.

    Raises ModelBroken if the shipped file is damaged.
    """
    folder = shipped_file("resources", "demo")
    description = _DemoDescription.model_validate_json((folder / "demo.json").read_bytes())
    path = cache_dir() / "demo" / description.sha256[:16] / description.file
    if path.is_file() and _sha256(path.read_bytes()) == description.sha256:
        return path
    try:
        data = lzma.decompress((folder / "demo.gguf.xz").read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise ModelBroken(
            message("Cannot read the built-in demo model: {error}.", error=error),
            message("Install the program again."),
        ) from error
    if _sha256(data) != description.sha256:
        raise ModelBroken(
            message("The built-in demo model is damaged: its checksum differs."), message("Install the program again.")
        )
    write_atomically(path, data)
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
