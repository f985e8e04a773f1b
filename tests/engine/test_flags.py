"""Flags are read from a build's --help, in llama-server's layout and in argparse's."""

import json
import subprocess
import sys

import pytest

from launcher.base.errors import BadOption
from launcher.engine.builds.flags import Flag, parse_flags, read_flags
from launcher.engine.builds.probe import probe_engine

HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                        (env: LLAMA_ARG_CTX_SIZE)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
                                        (env: LLAMA_ARG_FLASH_ATTN)
--perf, --no-perf                       whether to enable internal libllama performance timings (default:
                                        false)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0
                                        (default: f16)
--spec-type none,draft-mtp,ngram-mod
                                        comma-separated list of types

                                        (default: none)

----- sampling params -----

--temp, --temperature N                 temperature (default: 0.80)
--draft, --draft-n N                    the argument has been removed. use --spec-draft-n-max
--lora FNAME                            path to LoRA adapter
--no-mmap                               do not memory-map the model
"""


def find_flag(name: str) -> Flag:
    (found,) = [flag for flag in parse_flags(HELP) if name in flag.names]
    return found


def test_names_values_defaults_and_descriptions_are_read() -> None:
    context = find_flag("--ctx-size")
    assert (context.names, context.placeholder, context.default, context.kind) == (
        ("--ctx-size", "-c"),
        "N",
        "0",
        "whole",
    )
    assert context.description == "size of the prompt context (default: 0, 0 = loaded from model)"
    assert (context.section, find_flag("--temp").section) == ("common params", "sampling params")
    attention = find_flag("-fa")
    assert (attention.choices, attention.kind) == (("on", "off", "auto"), "choice")
    assert find_flag("--cache-type-k").choices == ("f32", "f16", "q8_0")
    assert (find_flag("--perf").off, find_flag("--perf").kind, find_flag("--perf").default) == (
        "--no-perf",
        "switch",
        "false",
    )
    assert (find_flag("--no-mmap").off, find_flag("--no-mmap").kind) == (None, "switch")
    assert (find_flag("--temp").kind, find_flag("--temp").name, find_flag("--temp").default) == (
        "number",
        "--temperature",
        "0.80",
    )
    assert (find_flag("--lora").kind, find_flag("--spec-type").kind, find_flag("--spec-type").default) == (
        "file",
        "text",
        "none",
    )
    assert "comma-separated list of types" in find_flag("--spec-type").description


def test_removed_flags_and_flags_that_only_print_are_left_out() -> None:
    names = {name for flag in parse_flags(HELP) for name in flag.names}
    assert not names & {"--draft", "--help", "--usage"}
    assert len(parse_flags(HELP)) == 8


def test_values_are_found_set_and_removed_in_arguments() -> None:
    extra = ("--temp", "0.5", "-fa=off", "--no-perf", "--lora", "a b.gguf")
    assert [find_flag(name).value_in(extra) for name in ("--temp", "-fa", "--perf", "--lora", "-c")] == [
        "0.5", "off", "off", "a b.gguf", None
    ]  # fmt: skip
    assert find_flag("--temp").set_in(extra, "1.0") == (*extra[2:], "--temperature", "1.0")
    assert find_flag("-fa").set_in(extra, None) == (*extra[:2], *extra[3:])
    assert find_flag("--perf").set_in(extra, "on") == (*extra[:3], *extra[4:], "--perf")
    assert find_flag("--no-mmap").set_in((), "on") == ("--no-mmap",)
    assert find_flag("--no-mmap").set_in(("--no-mmap",), None) == ()


@pytest.mark.parametrize(("name", "value"), [("-fa", "maybe"), ("--ctx-size", "8K"), ("--temp", "hot")])
def test_a_value_of_the_wrong_type_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=find_flag(name).name):
        find_flag(name).check_value(value)
    find_flag("-fa").check_value("auto")
    find_flag("--ctx-size").check_value("-1")
    find_flag("--temp").check_value(".5")


def test_a_search_matches_all_words() -> None:
    assert [flag.name for flag in parse_flags(HELP) if flag.matches_search("cache K")] == ["--cache-type-k"]
    assert find_flag("--temp").matches_search("")


async def test_help_of_the_built_in_engine_is_read() -> None:
    flags = {flag.name: flag for flag in await read_flags(await probe_engine(None))}
    assert flags["--flash-attn"].choices == ("on", "off", "auto")
    assert {"--ctx-size", "--spec-draft-n-max", "--parallel"} <= flags.keys()


def test_the_command_lists_flags() -> None:
    command = [sys.executable, "-m", "launcher", "engine", "flags", "draft", "length"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "--spec-draft-n-max" in output
    assert "--port" not in output
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert [flag["names"] for flag in json.loads(as_json)["flags"]] == [["--spec-draft-n-max"]]
