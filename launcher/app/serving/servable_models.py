"""The models on this machine by the names under which clients may ask for them."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from launcher.base.errors import ModelBroken, ModelUnknown
from launcher.base.messages import as_message, command_name, join_messages, mark, message, suggest_names
from launcher.engine.demo import DEMO, unpack_demo_model
from launcher.engine.server import registry
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import LocalModel, State, list_library

_NEAR = 3


@dataclass(frozen=True, slots=True)
class ServableModel:
    """A local model. `name` is the one under which it is served and listed, `other_names` are accepted, too.

    `argument` is what `serve` takes for it. `embeds` is whether it turns texts into vectors, None if that is unknown.
    """

    name: str
    path: Path
    argument: str
    other_names: frozenset[str]
    bytes: int
    embeds: bool | None

    def has_name(self, name: str) -> bool:
        """Return whether clients can ask for it by `name`."""
        return name == self.name or name in self.other_names


def list_servable_models() -> tuple[ServableModel, ...]:
    """Return the demo and the models of the library that can be served, each with a name of its own.

    A name that several have, such as a catalogue ID without a quantisation, means the one that came here last. Names
    are never paths: a client cannot choose a file. Raises OSError if the library's index cannot be written.
    """
    catalogue = load_catalogue()
    demo = unpack_demo_model()
    models = [ServableModel(DEMO, demo, DEMO, frozenset(), demo.stat().st_size, embeds=False)]
    taken = {DEMO}
    found = [each for each in list_library(catalogue).models if _can_be_served(each)]
    for local in sorted(found, key=_received_s, reverse=True):
        candidates = _list_names(local)
        free = [each for each in candidates if each not in taken]
        if not free:
            continue
        taken.update(free)
        entry = next((each for each in catalogue.models if each.id == local.record.model), None)
        models.append(
            ServableModel(
                free[0],
                local.path.absolute(),
                str(local.path),
                frozenset(free[1:]),
                local.record.bytes,
                embeds=entry.embedding if entry else None,
            )
        )
    return tuple(models)


def list_unreadable_models() -> tuple[tuple[str, ModelBroken], ...]:
    """Return the name of each file of the library that cannot be read or is incomplete, with the error.

    Files that are whole and no models, such as projectors, are left out.
    """
    return tuple(
        (local.path.stem, ModelBroken(as_message(local.problem)))
        for local in list_library(load_catalogue()).models
        if local.problem and not _can_be_served(local)
    )


def find_absent_model(name: str) -> str | None:
    """Return the name to pull for a model of the catalogue that is not on this machine; None for any other name."""
    return name if name in _catalogue_names(load_catalogue()) else None


def is_model_here(name: str) -> bool:
    """Return whether clients can ask for a model by this name now; False if it is in the catalogue only.

    Raises ModelUnknown, with similar names, for a name that neither this machine nor the catalogue has.
    """
    models = list_servable_models()
    served = {model.model for entry in registry.list_entries() for model in entry.models}
    here = {model.name for model in models} | {each for model in models for each in model.other_names} | served
    if name in here:
        return True
    known = here | _catalogue_names(load_catalogue())
    if name in known:
        return False
    near = get_close_matches(name, known, n=_NEAR, cutoff=0.5)
    raise ModelUnknown(
        message("There is no model {name}.", name=name),
        join_messages(
            suggest_names(near),
            message(
                "{here} lists the models that are here[, {command} the catalogue].",
                here=command_name("models list", mark("Models")),
                command=command_name("models"),
            ),
        ),
        wanted=name,
        near=near,
    )


def _catalogue_names(catalogue: Catalogue) -> frozenset[str]:
    """Return the names under which the catalogue's models can be downloaded, with and without a quantisation."""
    files = {f"{each.id}:{file.quant}" for each in catalogue.models for file in each.files}
    return frozenset({each.id for each in catalogue.models} | files)


def _can_be_served(local: LocalModel) -> bool:
    is_unreadable = local.record.problem is not None and local.record.head is None
    can_load = local.state not in (State.MISSING, State.DAMAGED, State.INCOMPLETE) and not is_unreadable
    return local.record.kind == "model" and can_load


def _received_s(local: LocalModel) -> float:
    return local.record.received_s or 0.0


def _list_names(local: LocalModel) -> list[str]:
    """Return the names of a model, the best one first: catalogue, its own program's, hub, file."""
    record, names = local.record, []
    if record.model:
        names += [f"{record.model}:{record.quant}", record.model] if record.quant else [record.model]
    if local.stored is not None:
        names += [local.stored.name, *local.stored.aliases]
    names.append(local.path.stem)
    if record.repo and record.file:
        names.append(f"{record.repo}:{record.file}")
    names.append(f"{local.path.parent.name}/{local.path.stem}")
    return list(dict.fromkeys(names))
