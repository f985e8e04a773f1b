"""Amounts as people write them."""

import argparse
from collections.abc import Callable

import pytest

from launcher.cli.main import main
from launcher.cli.options.machine_options import add_machine_options, add_setting_options
from launcher.cli.quantities import parse_gib, parse_mib, parse_tokens


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        (parse_tokens, "131072", 131_072),
        (parse_tokens, "128K", 131_072),
        (parse_tokens, "128k", 131_072),
        (parse_tokens, "131,072", 131_072),
        (parse_tokens, "1.5K", 1_536),
        (parse_tokens, "1M", 1_048_576),
        (parse_tokens, "-1", -1),
        (parse_gib, "16", 16),
        (parse_gib, "16GB", 16),
        (parse_gib, "16 GiB", 16),
        (parse_gib, "23.5g", 23.5),
        (parse_gib, "16384MiB", 16),
        (parse_gib, ".5", 0.5),
        (parse_gib, "-1", -1),
        (parse_mib, "15000", 15_000),
        (parse_mib, "15000MiB", 15_000),
        (parse_mib, "15,000 mb", 15_000),
        (parse_mib, "14.5GB", 14_848),
    ],
)
def test_usual_spellings_are_parsed(read: Callable[[str], float], text: str, amount: float) -> None:
    assert read(text) == amount


@pytest.mark.parametrize(
    "text", ["", " ", "K", "GB", "big", "nan", "inf", "1e9", "12,34", "128X", "1 2", "0x10", "--5", "9" * 400]
)
@pytest.mark.parametrize("read", [parse_tokens, parse_gib, parse_mib])
def test_invalid_texts_are_refused(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write it like"):
        read(text)


@pytest.mark.parametrize("words", [["serve", "--port"], ["serve", "--slots"], ["keys", "--port"], ["stop", "--drain"]])
def test_an_invalid_number_is_reported_in_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "80x"], lambda _: 0)
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert f'argument {words[1]}: "80x" is not a ' in output
    assert "invalid" not in output


def test_fractions_of_tokens_are_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r'"0\.3K" is not a number of tokens'):
        parse_tokens("0.3K")


@pytest.mark.parametrize("option", ["--ctx", "--ubatch", "--gpu-memory", "--free-memory", "--host-memory"])
def test_an_error_names_the_option_with_an_example(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_machine_options(parser)
    add_setting_options(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([option, "much"])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert f'argument {option}: "much" is not' in output
    assert "; write it like " in output
