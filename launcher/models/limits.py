"""Checks of server settings that plans and starts share, with their errors."""

import re
from collections.abc import Collection

from launcher.base.errors import BadOption, ModelHasNoHead, ModelWritesNoText
from launcher.base.messages import (
    FaceName,
    Message,
    as_message,
    command_name,
    engine_arguments,
    join_messages,
    mark,
    message,
)
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.drafters import MTP, Drafter
from launcher.models.gguf import GgufModel
from launcher.models.server_settings import name_setting

_RPC = re.compile(r"(?P<host>[A-Za-z0-9_.-]{1,253}):(?P<port>\d{1,5})", re.ASCII)
"""A worker as llama.cpp parses it: the host ends at the first colon, so there are no IPv6 addresses (ggml-rpc.cpp)."""
Listed = tuple[ModelEntry, ModelFile] | None
"""What the catalogue has of a model; None for one that it does not have."""


def check_rpc(workers: Collection[str]) -> None:
    """Raise BadOption unless all `workers` are HOST:PORT."""
    for worker in workers:
        found = _RPC.fullmatch(worker)
        if found is None or found["host"].startswith("-") or not 1 <= int(found["port"]) <= 65_535:
            raise BadOption(
                message('"{worker}" is not an RPC worker.', worker=worker),
                message("Write --rpc HOST:PORT, separated by commas."),
                option="--rpc",
            )


def no_head_error(
    name: str, drafter: Drafter = MTP, *, listed: Listed = None, why: str | None = None, **facts: object
) -> ModelHasNoHead:
    """Return the error for a drafter that lacks the head or the file that it needs; `why` is added in parentheses."""
    if drafter.source == "file":
        kind = FaceName(drafter.spec_type, drafter.title)
        return ModelHasNoHead(
            message("{name} has no file for {drafter} beside it[ ({why})].", name=name, drafter=kind, why=why),
            advise_draft(drafter, listed),
            **facts,
        )
    return ModelHasNoHead(
        message("{name} has no MTP head[ ({why})].", name=name, why=why),
        message(
            "Start it with {mtp_off}, or download a file with an MTP head (its repository name often ends"
            " in -MTP-GGUF).",
            mtp_off=name_setting("draft", 0),
        ),
        **facts,
    )


def advise_draft(drafter: Drafter, listed: Listed) -> Message:
    """Return what to do for a drafter whose file is not here."""
    drafts = listed[0].all_drafts if listed else ()
    kinds = {each.drafter.spec_type: as_message(each.drafter.title) for each in drafts if not each.is_local}
    kind = drafter.spec_type if drafter.spec_type in kinds else "KIND"
    get = command_name(f"pull {listed[0].id}:{listed[1].quant} --drafter {kind}") if listed and kinds else None
    return message(
        "Start it with another drafter or {mtp_off}, or put its file beside the model[, or name it with {option}][, or "
        "download one with {command}][, or download one on {page}][ (files are known for {kinds})].",
        mtp_off=name_setting("draft", 0),
        option=FaceName("--draft-model"),
        command=get,
        page=FaceName(None, mark("Models")) if get else None,
        kinds=FaceName(", ".join(kinds), join_messages(*kinds.values(), separator=", ")) if kinds else None,
    )


def no_text_error(name: str, *, is_reranker: bool) -> ModelWritesNoText:
    """Return the error for requesting text from an embedding model or a reranker."""
    if is_reranker:
        return ModelWritesNoText(
            message("{name} is a reranker: it ranks texts, but generates none.", name=name),
            message("Send a query and texts to /v1/rerank of its server, or choose a model that generates text."),
        )
    return ModelWritesNoText(
        message("{name} is an embedding model: it turns texts into vectors, but generates none.", name=name),
        message("Send texts to /v1/embeddings of its server, or choose a model that generates text."),
    )


def check_writes_text(model: GgufModel) -> None:
    """Raise ModelWritesNoText for an embedding model or a reranker."""
    if model.is_embedding:
        raise no_text_error(model.name, is_reranker=model.is_reranker)


def training_warning(trained: int | None, context: int) -> str:
    """Return a warning if a slot's `context` is longer than the model was `trained` for (both in tokens), else "".

    Training limits the positions within one sequence, so the context of all slots together may be longer.
    """
    if not trained or context <= trained:
        return ""
    return message(
        "The model was trained for {trained:,} tokens. A longer context needs RoPE scaling (add "
        "{arguments}) and lowers quality.",
        trained=trained,
        arguments=engine_arguments("--rope-scaling yarn"),
    )
