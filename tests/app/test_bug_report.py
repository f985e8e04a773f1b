"""The bug report: its contents, and the secrets that are left out."""

from pathlib import Path

import pytest

from launcher.app.bug_report import write_bug_report
from launcher.base.redact import HIDDEN
from launcher.engine.server.endpoint import add_key, claim_endpoint
from launcher.engine.server.logs import LogBook, list_log_files

OUT_OF_MEMORY = (
    "0.00.900.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed:"
    " out of memory"
)


async def test_a_report_has_versions_the_cause_and_the_last_lines() -> None:
    lines = [f"line {number}" for number in range(1_000)] + [
        OUT_OF_MEMORY,
        "srv main: exiting due to model loading error",
    ]
    text = await write_bug_report(lines, exit_code=1)
    assert "MTP Launcher: " in text
    assert "### Diagnosis\n\nNo known cause." not in text
    assert "602 lines before these are left out" in text
    assert "line 601" not in text
    assert "line 602" in text
    assert text.count("```") == 4


async def test_no_key_is_in_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_tokenOfMine123456")
    monkeypatch.setenv("MY_OWN_KEY", "swordfish-9")
    monkeypatch.setenv("HOME", str(tmp_path))
    key = claim_endpoint(None).api_key
    named = add_key(None, "laptop").keys["laptop"]
    lines = [f"a {key} b", named, "hf_tokenOfMine123456", "swordfish-9", f"{tmp_path}/m.gguf", "``` not a fence"]
    text = await write_bug_report(lines)
    for secret in (key, named, "hf_tokenOfMine123456", "swordfish-9", str(tmp_path)):
        assert secret not in text
    assert f"a {HIDDEN} b" in text
    assert "~/m.gguf" in text
    assert text.count("```") == 4


def test_the_log_files_are_listed() -> None:
    assert list_log_files() == ()
    for port in (9_001, 9_002):
        book = LogBook.for_port(port)
        book.add("one")
        book.close()
    (book.path.with_name("engine-9002.log.1")).write_text("older\n")
    assert {(each.port, each.age) for each in list_log_files()} == {(9_001, 0), (9_002, 0), (9_002, 1)}
