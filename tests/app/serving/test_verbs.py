"""The verbs of the control API, as they cross between processes and versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.app.serving import verbs
from launcher.base.action import Action, ActionKind
from launcher.base.codec import to_json
from launcher.base.errors import BadOption
from launcher.base.messages import Message, add_message_data, message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice

OPTIONS = ServeOptions(Path("/m.gguf"), Path("/engine"), draft=3, rpc=("h:1",), extra=("--x", "y"))
NOTICE = Notice("code", message("Port {port} is taken.", port=1))
SENT = (
    *(verbs.GetStatus(), verbs.ReadLog(5, follow=True), verbs.ReadRequests(2, follow=True, current=True)),
    *(verbs.Stop(), verbs.Stop("m", 2.5), verbs.Restart({"ctx": "8K"}, 1.0), verbs.PreviewRestart({"draft": "0"})),
    StartRequest(
        OPTIONS, True, True, 30.0, {"draft": 3, "kv_unified": False, "p_min": 0.5}, {"ctx": None}, "m", (NOTICE,)
    ),
    StartRequest(OPTIONS),
    *(verbs.Share(True, False, 1.0), verbs.ApplyFix(Action(ActionKind.SMALLER_CONTEXT, "Less.", {"context": 512}))),
    *(
        verbs.ForeseeHandover(),
        verbs.PrepareFor("pi"),
        verbs.ReloadKeys(),
        verbs.Lend(),
        verbs.RestartLent(OPTIONS),
        verbs.GiveBack(keep=True),
    ),
    verbs.Join("m", {"ctx": 512}, OPTIONS, False, False, True, True),
    *(verbs.Own(), verbs.CancelStarts(), verbs.NoteRequests(2), verbs.NoteReplies(None), verbs.NoteReplies(1.5)),
    *(verbs.NoteFindings(({"code": "x", "evidence": {"n": 1}},)), verbs.Quit()),
)


def name_of(verb: object) -> str:
    return next(name for name, kind in verbs.VERBS.items() if kind is type(verb))


def test_every_verb_arrives_as_it_was_sent() -> None:
    for verb in SENT:
        fields = json.loads(json.dumps(add_message_data(to_json(verb))))
        assert verbs.read_verb(name_of(verb), {**fields, "number": 3, "of a later version": 1}) == verb
    assert {name_of(verb) for verb in SENT} == verbs.VERBS.keys()


def test_a_message_stays_a_message() -> None:
    fields = json.loads(json.dumps(add_message_data(to_json(StartRequest(OPTIONS, notices=(NOTICE,))))))
    read = verbs.read_verb("start", fields)
    assert isinstance(read, StartRequest)
    text = read.notices[0].text
    assert isinstance(text, Message)
    assert (text.template, text.facts) == ("Port {port} is taken.", {"port": 1})


@pytest.mark.parametrize(
    ("name", "fields", "verb"),
    [
        ("status", {}, verbs.GetStatus()),
        ("stop", {"drain_s": 0}, verbs.Stop()),
        ("stop", {"model": "m", "drain_s": 1.0}, verbs.Stop("m", 1.0)),
        ("restart", {"set": {"ctx": "8K"}, "drain_s": 2.0}, verbs.Restart({"ctx": "8K"}, 2.0)),
        ("logs", {"lines": 3, "follow": True}, verbs.ReadLog(3, follow=True)),
        ("requests", {"count": 3, "follow": False}, verbs.ReadRequests(3)),
        ("quit", {}, verbs.Quit()),
    ],
)
def test_what_earlier_versions_send_is_understood(name: str, fields: dict[str, Any], verb: object) -> None:
    assert verbs.read_verb(name, fields) == verb


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("dance", {}, "does not support dance"),
        ("stop", {"drain_s": "soon"}, "does not understand stop: drain_s should be a number"),
        ("start", {}, "does not understand start: options is missing"),
    ],
)
def test_what_is_not_understood_is_refused(name: str, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(BadOption, match=error) as refused:
        verbs.read_verb(name, fields)
    assert refused.value.facts["verb"] == name
