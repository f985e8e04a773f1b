"""Converts the messages between a server process and its owner to JSON and back: starts, launches, events, errors."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from launcher.base.action import Action, ActionKind
from launcher.base.errors import LauncherError, Refused
from launcher.engine.builds.build import EngineBuild
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, check_model
from launcher.engine.server.process import EngineCommand
from launcher.engine.server.state import (
    EngineStarted,
    ModelsChanged,
    ModelStatus,
    Notice,
    PromptRead,
    ServerEvent,
    ServerState,
    ServerStatus,
    StreamsContinued,
)

Json = dict[str, Any]

_PATHS = frozenset({"model", "engine", "draft_file", "mmproj", "chat_template_file"})
"""The fields of ServeOptions that hold paths."""
_TUPLES = frozenset({"rpc", "extra"})


def options_to_json(options: ServeOptions) -> Json:
    """Return a start's options as a JSON object, with absolute paths: another process may have another folder."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in values.items()}


def options_from_json(data: Mapping[str, Any]) -> ServeOptions:
    """Return the options that `options_to_json` described."""

    def convert(name: str, value: object) -> Any:  # noqa: ANN401 -- a field's value
        if name in _PATHS and value is not None:
            return Path(str(value))
        return tuple(cast("list[str]", value)) if name in _TUPLES else value

    return ServeOptions(**{name: convert(name, value) for name, value in data.items()})


def endpoint_to_json(endpoint: Endpoint) -> Json:
    """Return an address and its keys as a JSON object."""
    return {field.name: getattr(endpoint, field.name) for field in fields(endpoint)}


def endpoint_from_json(data: Mapping[str, Any]) -> Endpoint:
    """Return the address that `endpoint_to_json` described."""
    return Endpoint(**{**data, "named_keys": tuple((name, key) for name, key in data["named_keys"])})


def launch_to_json(launch: Launch) -> Json:
    """Return a launch as a JSON object, without the model's header, which is in the model's file."""
    command, build = launch.command, launch.build
    return {
        "command": {
            "arguments": list(command.arguments),
            "environment": dict(command.environment),
            "folder": str(command.folder),
        },
        "build": {
            "name": build.name,
            "command": list(build.command),
            "version": build.version,
            "flags": sorted(build.flags),
            "kv_types": sorted(build.kv_types),
            "environment": dict(build.environment),
            "offers_mtp": build.offers_mtp,
        },
        "context": launch.context,
        "options": options_to_json(launch.options),
        "note": launch.note,
        "limits": dict(launch.limits),
    }


def launch_from_json(data: Mapping[str, Any]) -> Launch:
    """Return the launch that `launch_to_json` described. Raises what check_model raises if its model is gone.

    It reads the model's header, so call it in a worker thread.
    """
    command, build = data["command"], data["build"]
    options = options_from_json(data["options"])
    return Launch(
        EngineCommand(tuple(command["arguments"]), command["environment"], Path(command["folder"])),
        EngineBuild(
            build["name"],
            tuple(build["command"]),
            build["version"],
            frozenset(build["flags"]),
            frozenset(build["kv_types"]),
            build["environment"],
            build["offers_mtp"],
        ),
        check_model(options),
        data["context"],
        options,
        data["note"],
        data["limits"],
    )


def event_to_json(event: ServerEvent) -> Json | None:
    """Return an event as a JSON object; None for a log line and for models, which cross by themselves."""
    match event:
        case ServerStatus(state, percent, error):
            return {"status": state.value, "percent": percent, "why": None if error is None else error_to_json(error)}
        case Notice(code, text):
            return {"notice": code, "text": text}
        case EngineStarted(pid, created_s):
            return {"engine_pid": pid, "created_s": created_s}
        case StreamsContinued(gap_s):
            return {"gap_s": gap_s}
        case PromptRead():
            return {"prompt": event._asdict()}
        case _:
            return None


def event_from_json(data: Mapping[str, Any]) -> ServerEvent | None:
    """Return the event that `event_to_json` described; None for one that this version does not know."""
    match data:
        case {"status": str(state), "percent": percent, "why": why}:
            return ServerStatus(ServerState(state), percent, None if why is None else error_from_json(why))
        case {"notice": str(code), "text": str(text)}:
            return Notice(code, text)
        case {"engine_pid": int(pid), "created_s": created_s}:
            return EngineStarted(pid, created_s)
        case {"gap_s": gap_s}:
            return StreamsContinued(gap_s)
        case {"prompt": dict(fields)}:
            return PromptRead(**fields)
        case _:
            return None


def models_to_json(models: tuple[ModelStatus, ...]) -> list[Json]:
    """Return the models at an address as JSON objects."""
    return [{**each._asdict(), "state": each.state.value} for each in models]


def models_from_json(data: Iterable[Mapping[str, Any]]) -> ModelsChanged:
    """Return the event for the models that `models_to_json` described."""
    return ModelsChanged(tuple(ModelStatus(**{**each, "state": ServerState(each["state"])}) for each in data))


def error_to_json(error: LauncherError) -> Json:
    """Return an error as a JSON object."""
    reason = getattr(error, "reason", None)
    return {
        "code": error.code,
        "title": error.title,
        "hint": error.hint,
        "facts": {name: value for name, value in error.facts.items() if name != "actions"},
        "actions": [action.as_json() for action in error.actions],
        "reason": error_to_json(reason) if isinstance(reason, LauncherError) else None,
    }


def error_from_json(data: Mapping[str, Any]) -> LauncherError:
    """Return the error that `error_to_json` described, of its own class."""
    code = str(data["code"])
    class_ = _find_class(LauncherError, code) or LauncherError
    error = class_.__new__(class_)
    # The constructors of some classes make title and facts of other arguments.
    LauncherError.__init__(error, data["title"], data["hint"])
    error.facts, error.code = dict(data["facts"]), code
    if data["actions"]:
        error.attach_actions(map(action_from_json, data["actions"]))
    if data["reason"] is not None:
        vars(error)["reason"] = error_from_json(data["reason"])
    if isinstance(error, Refused):
        status = error.facts.get("status")
        error.status, error.wait_s = status if isinstance(status, int) else None, None
    return error


def action_from_json(data: Mapping[str, Any]) -> Action:
    """Return the fix that Action.as_json described."""
    return Action(ActionKind(data["kind"]), data["label"], data["parameters"])


def _find_class(base: type[LauncherError], code: str) -> type[LauncherError] | None:
    """Return the class of errors with a code. Some classes share their parent's code; the parent is returned then."""
    if base.code == code:
        return base
    return next((found for each in base.__subclasses__() if (found := _find_class(each, code))), None)
