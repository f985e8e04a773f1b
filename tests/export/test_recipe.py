"""A command line is parsed into a recipe and written again without loss."""

import pytest

from launcher.base.errors import BadOption
from launcher.export.recipe import ExportRecipe, file_name, parent_folder


def test_a_command_is_split_into_its_parts() -> None:
    argv = ["python", "-P", "engine.py", "--model", "/m/a.gguf", "--port", "20001", "--cache-ram", "-1", "--metrics"]
    recipe = ExportRecipe.from_argv([*argv, "-md", "/d/draft.gguf"], port=1, name="a", backend="cpu")
    assert recipe.program == ("python", "-P", "engine.py")
    assert recipe.files == ("/m/a.gguf", "/d/draft.gguf")
    assert recipe.options == (("--cache-ram", "-1"), ("--metrics", None), ("--spec-draft-model", "/d/draft.gguf"))
    assert recipe.url == "http://127.0.0.1:20001/v1"
    assert recipe.build_arguments()[:8] == [
        *("--model", "/m/a.gguf", "--host", "127.0.0.1"),
        *("--port", "20001", "--alias", "a"),
    ]


def test_a_key_in_the_command_is_not_copied() -> None:
    recipe = ExportRecipe.from_argv(
        ["x", "--model", "m", "--api-key", "hidden-in-argv"], port=1, name="m", backend="cpu"
    )
    assert "hidden-in-argv" not in recipe.build_arguments()
    assert "hidden" not in repr(recipe)


def test_an_export_without_a_model_is_refused() -> None:
    with pytest.raises(BadOption, match="no model"):
        ExportRecipe.from_argv(["llama-server", "--port", "1"], port=1, name="m", backend="cpu")


def test_an_undecodable_name_is_refused() -> None:
    with pytest.raises(BadOption, match="not UTF-8"):
        ExportRecipe.from_argv(["llama-server", "--model", "/m/\udcff.gguf"], port=1, name="m", backend="cpu")


@pytest.mark.parametrize(
    ("path", "where", "name"),
    [("/m/a.gguf", "/m", "a.gguf"), ("a.gguf", ".", "a.gguf"), ("C:\\m\\a b.gguf", "C:\\m", "a b.gguf")],
)
def test_paths_of_every_system_are_read(path: str, where: str, name: str) -> None:
    assert (parent_folder(path), file_name(path)) == (where, name)


def test_with_paths_moves_all_files() -> None:
    recipe = ExportRecipe.from_argv(
        ["x", "--model", "/a/m", "--mmproj", "/b/p", "--alias", "/a/m"], port=1, name="m", backend="cpu"
    )
    moved = recipe.with_paths(lambda path: f"/new{path}", port=2)
    assert moved.files == ("/new/a/m", "/new/b/p")
    assert (moved.name, moved.port) == ("/a/m", 2)


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ("--ctx-size 8192 --parallel 1", 8192),
        ("--ctx-size 8192 --parallel 2", 4096),
        ("--ctx-size 8192 -np 2 --kv-unified", 8192),
        ("-c 8192", 8192),
        ("--ctx-size 0 --parallel 2", None),
        ("--metrics", None),
    ],
)
def test_the_context_is_that_of_one_slot(options: str, context: int | None) -> None:
    argv = ["llama-server", "--model", "m", *options.split()]
    assert ExportRecipe.from_argv(argv, port=1, name="m", backend="cpu").context == context
