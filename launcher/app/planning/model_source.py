"""A model whose header is read, from this disk or from the hub: its settings, its memory by the formula, advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.base.errors import (
    BadOption,
    ModelMissing,
    Offline,
    Unreachable,
)
from launcher.base.messages import command_name, join_messages, mark, message
from launcher.base.paths import expand_user
from launcher.engine.demo import DEMO, unpack_demo_model
from launcher.engine.engine_estimate import TwinPart
from launcher.fetch.hub import HubFile, is_hub_file, resolve_file
from launcher.models.catalogue_load import load_catalogue
from launcher.models.file_entry import describe_file
from launcher.models.fit_advice import advise_fit
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_header, read_model, read_raw_header
from launcher.models.gguf_remote import read_remote_model
from launcher.models.header_summary import read_draft_model
from launcher.models.hub_model import find_named_entry, parse_hub_name, select_hub_model
from launcher.models.locate import find_named, refuse_unusable
from launcher.models.memory import PlanSettings, estimate_memory
from launcher.models.plan import PlanCriteria, estimate_argument
from launcher.models.situation import Situation
from launcher.models.smaller_model import find_smaller
from launcher.models.weights import read_weights

if TYPE_CHECKING:
    from launcher.engine.engine_estimate import TwinPart
    from launcher.models.catalogue import ModelEntry
    from launcher.models.fit_advice import FitAdvice
    from launcher.models.gguf import GgufModel
    from launcher.models.memory import MemoryEstimate


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose header was read, from this disk or from the hub. `entry` has its drafts; None: those beside it."""

    model: GgufModel
    parts: tuple[TwinPart, ...]
    entry: ModelEntry | None = None


def read_source(target: str) -> ModelSource:
    """Read the header of a local file, or of ID:QUANT or `OWNER/NAME:FILE`, locally if downloaded, else from the hub.

    Raises ModelMissing, ModelBroken, ModelUnexpected for a file that is no model, and the errors of the hub.
    """

    name, target = target, _locate_target(target)
    path = expand_user(target)
    if not path.exists() and not is_hub_file(target):
        raise ModelMissing(
            message("Model file {target} not found.", target=target),
            message(
                "Check the path. For a file on Hugging Face write OWNER/NAME:FILE.gguf; for a model of the "
                "catalogue use `plan --model ID`."
            ),
        )
    if path.exists():
        model = read_model(path)
        refuse_unusable(model)
        raw = [read_raw_header(part) for part in model.parts]
    else:
        try:
            remote = read_remote_model(HubFile.parse(target))
        except (Offline, Unreachable) as error:
            if name != target and "/" not in name:  # a model of the catalogue
                hint = message(
                    "{command} does not need the file's header.", command=command_name(f"plan {name}", mark("Start"))
                )
                error.hint = join_messages(error.hint, hint)
            raise
        model, raw = remote.model, list(remote.raw_headers)
        refuse_unusable(model)
    parts = zip(model.parts, raw, strict=True)
    return ModelSource(model, tuple(TwinPart(part.path.name, header, part.file_bytes) for part, header in parts))


def _locate_target(target: str) -> str:
    """Return the path of a downloaded model of the catalogue, the hub address of another one, else `target` itself."""

    if target == DEMO:
        return str(unpack_demo_model())
    catalogue = load_catalogue()
    hub_name = parse_hub_name(target)
    if hub_name is not None and hub_name.file is None and find_named_entry(target, catalogue) is None:
        selection = select_hub_model(target, catalogue)
        if selection is not None and selection.path is not None:
            return str(selection.path)
        if selection is not None and selection.file is not None:
            return estimate_argument(selection.entry, selection.file)
        raise BadOption(
            message("{target} has several model files.", target=target),
            message(
                "Write {target}:QUANT; {command} lists them.",
                target=target,
                command=command_name(f"plan {target}", mark("Models")),
            ),
        )
    if hub_name is not None and hub_name.file is not None:  # a link is brought into the usual form
        target = str(HubFile(hub_name.repo, hub_name.file, hub_name.revision or "main"))
    named = find_named(target, catalogue)
    if named is None or (named.local is None and named.entry is None):
        return target
    if named.local is not None:
        return str(named.local.path)
    if named.file is not None and named.entry is not None:
        return (
            target if "/" in target and target.lower().endswith(".gguf") else estimate_argument(named.entry, named.file)
        )
    raise BadOption(
        message("{target} has several model files.", target=target),
        message(
            "Write {target}:QUANT; {command} lists them.",
            target=target,
            command=command_name(f"models {target}", mark("Models")),
        ),
    )


def projector_bytes(target: str) -> int:
    """Return the size in bytes of a vision projector on this disk, or of `OWNER/NAME:FILE` on the hub.

    Raises ModelMissing, and the errors of the hub.
    """

    path = expand_user(target)
    if path.exists() or not is_hub_file(target):
        return read_header(path).file_bytes
    return resolve_file(HubFile.parse(target)).bytes


def estimate_by_formula(source: ModelSource, settings: PlanSettings) -> MemoryEstimate:
    """Return the formula's estimate for a model whose header was read, including a separate draft model beside it.

    Raises GeometryUnknown.
    """

    geometry = read_geometry(source.model)
    entry = (source.entry or describe_file(source.model)) if settings.draft_bytes else None
    draft_model = read_draft_model(entry.with_drafter(settings.drafter.spec_type)) if entry else None
    return estimate_memory(geometry, read_weights(source.model, geometry), settings, draft_model)


def advise_source(
    source: ModelSource, settings: PlanSettings, situation: Situation, target: str
) -> tuple[FitAdvice, ...]:
    """Return advice on what would fit, for a model that was read and whose settings do not fit. Raises GeometryUnknown.

    `target` is how the user named it: of a model of the catalogue, its other files are tried, too.
    """

    catalogue = load_catalogue()
    entry = find_named_entry(target, catalogue)
    criteria = PlanCriteria(entry.id if entry else None)
    smaller = find_smaller(catalogue, situation, criteria)
    weights = read_weights(source.model, read_geometry(source.model))
    return advise_fit(
        settings,
        situation,
        weights.expert_layers(mtp=settings.drafter.uses_head),
        lambda candidate: estimate_by_formula(source, candidate),
        smaller,
    )
