"""`quality` on the demo: the table, the JSON keys that the documentation promises, and wrong options."""

import json

import pytest

from launcher.tuning.quality import DEFAULT_FILL, DEFAULT_TOKENS
from tests import forked
from tests.cli.test_json_keys import read_documented_keys

SHORT = [
    "--draft",
    "0",
    "--tokens",
    "60",
    "--fill",
    "100",
    "--needle",
    "100",
    "--set",
    "threads=1",
    "--set",
    "ctx=2048",
]


@pytest.mark.thorough
def test_the_table_marks_values_beyond_the_limit() -> None:
    done = forked.run("quality", "demo", "--kv", "q4_0", *SHORT, env={"COLUMNS": "200"})
    assert done.returncode == 1, done.stderr
    head, row, *_ = done.stdout.splitlines()
    assert head.startswith("FILE")
    assert row.split()[:3] == ["F16", "q4_0", "off"]
    assert row.endswith("BEYOND THE LIMIT")
    assert "F16, KV q4_0: the answers change." in done.stdout.replace("\n", " ")
    assert "demo: 1 start against F16, KV f16, MTP off" in done.stderr.replace("\n", " ")


def test_the_json_has_its_documented_keys() -> None:
    done = forked.run("quality", "demo", "--kv", "q8_0", *SHORT, "--json")
    assert done.returncode in (0, 1), done.stderr
    result, keys = json.loads(done.stdout.splitlines()[-1]), read_documented_keys("quality")
    assert keys["the object"] <= result.keys()
    assert keys["`reference`"] <= result["reference"].keys()
    assert keys["each of `rows`"] <= result["rows"][0].keys()


def test_options_that_the_check_varies_are_refused() -> None:
    done = forked.run("quality", "demo", "--set", "kv=q8_0")
    assert done.returncode == 1
    assert "Use --kv." in done.stderr
    assert "is not one of" in forked.run("quality", "demo", "--kv", "q3_9").stderr


def test_the_defaults_of_the_options_are_those_of_the_check() -> None:
    help_text = forked.run("quality", "--help").stdout
    assert f"(default {DEFAULT_TOKENS})" in help_text
    assert f"(default {DEFAULT_FILL:,})" in help_text
