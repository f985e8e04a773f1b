"""Actions applied to settings that failed, and actions that cannot be applied."""

from pathlib import Path

import pytest

from launcher.base.action import Action, ActionKind, Value
from launcher.base.codec import to_json
from launcher.base.errors import ActionImpossible
from launcher.engine.diagnosis.actions import apply_action, changes_settings
from launcher.engine.serve_options import ServeOptions

OPTIONS = ServeOptions(
    Path("m.gguf"), context=65_536, draft=3, slots=4, extra=("--mmproj", "p.gguf", "-sm=row", "--fast")
)


def action(kind: ActionKind, **parameters: Value) -> Action:
    return Action(kind, "Do it", parameters)


@pytest.mark.parametrize(
    ("wanted", "field", "value"),
    [
        (action(ActionKind.SMALLER_CONTEXT), "context", 32_768),
        (action(ActionKind.SMALLER_CONTEXT, context=49_152), "context", 49_152),
        (action(ActionKind.LARGER_CONTEXT), "context", 131_072),
        (action(ActionKind.OTHER_KV_TYPE), "kv", "q8_0"),
        (action(ActionKind.OTHER_KV_TYPE, kv="q4_0"), "kv", "q4_0"),
        (action(ActionKind.SMALLER_UBATCH), "ubatch", 256),
        (action(ActionKind.DRAFT_OFF), "draft", 0),
        (action(ActionKind.MORE_EXPERTS_ON_CPU), "n_cpu_moe", 4),
        (action(ActionKind.MORE_EXPERTS_ON_CPU, n_cpu_moe=17), "n_cpu_moe", 17),
        (action(ActionKind.ONE_SLOT), "slots", 1),
        (action(ActionKind.REMOVE_FLAG, flag="--mmproj"), "extra", ("-sm=row", "--fast")),
        (action(ActionKind.REMOVE_FLAG, flag="-sm"), "extra", ("--mmproj", "p.gguf", "--fast")),
        (action(ActionKind.REMOVE_FLAG, flag="--fast"), "extra", ("--mmproj", "p.gguf", "-sm=row")),
        (
            action(ActionKind.ADD_FLAG, flag="-sm", value="layer"),
            "extra",
            ("--mmproj", "p.gguf", "--fast", "-sm", "layer"),
        ),
        (
            action(ActionKind.REPLACE_FLAG, **{"flag": "--fast", "with": "--faster"}),
            "extra",
            ("--mmproj", "p.gguf", "-sm=row", "--faster"),
        ),
        (action(ActionKind.BUILT_IN_ENGINE), "built_in", True),
        (action(ActionKind.REMOVE_FLAG, flag="--parallel"), "slots", 1),
        (action(ActionKind.REMOVE_FLAG, flag="--spec-draft-n-max"), "draft", 0),
        (action(ActionKind.LARGER_CONTEXT, holds=40_000), "context", 160_768),
    ],
    ids=str,
)
def test_an_action_changes_its_setting(wanted: Action, field: str, value: object) -> None:
    changed = apply_action(wanted, OPTIONS)
    assert getattr(changed, field) == value
    assert changed.model == OPTIONS.model
    assert changes_settings(wanted)


def test_an_unset_context_is_the_one_that_the_engine_used() -> None:
    assert apply_action(action(ActionKind.SMALLER_CONTEXT), ServeOptions(Path("m")), context=8_192).context == 4_096


@pytest.mark.parametrize(
    "wanted",
    [
        action(ActionKind.UPDATE_DRIVER),
        action(ActionKind.DOWNLOAD_AGAIN),
        action(ActionKind.REMOVE_FLAG, flag="--not-there"),
        action(ActionKind.REMOVE_FLAG),
        action(ActionKind.SMALLER_CONTEXT, context=1_024),
    ],
    ids=str,
)
def test_an_impossible_action_is_refused(wanted: Action) -> None:
    with pytest.raises(ActionImpossible):
        apply_action(wanted, OPTIONS)


def test_an_action_without_effect_is_refused() -> None:
    with pytest.raises(ActionImpossible, match="nothing to change"):
        apply_action(action(ActionKind.DRAFT_OFF), ServeOptions(Path("m"), draft=0))
    with pytest.raises(ActionImpossible):
        apply_action(action(ActionKind.SMALLER_CONTEXT), ServeOptions(Path("m")))


def test_an_action_is_json() -> None:
    result = to_json(action(ActionKind.SMALLER_CONTEXT, context=4_096))
    assert result == {"kind": "smaller_context", "label": "Do it", "parameters": {"context": 4_096}}
