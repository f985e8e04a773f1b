"""The memory tables that engines print, as they print them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engine.engine_estimate import MemoryTableReader, MemoryTableRow

# Printed by xllamacpp 2026.10.11549 (without GPUs) and by llama-server b11669 (two Vulkan devices).
P = "0.00.234.187 I common_memory_breakdown_print: "
TEXT = """\
0.00.001.455 I cmn  common_param: system_info: n_threads = 1 | CPU : SSE3 = 1 | AVX2 = 1 | REPACK = 1 |
P| memory breakdown [MiB] | total   free     self   model   context   compute    unaccounted |
P|   - Host               |                 17751 = 14676 +    2908 +     166                |
P|   - CPU_REPACK         |                  1728 =  1728 +       0 +       0                |
0.00.250.000 I llama_context: n_seq_max = 1
P| memory breakdown [MiB] | total   free     self   model   context   compute    unaccounted |
P|   - Host               |                 15337 = 14676 +     512 +     148                |
0.00.261.027 I common_params_fit_impl: projected to use 18411 MiB of host memory vs. 24105 MiB of total host memory
""".replace("P|", f"{P}|")
CARDS = """\
P| memory breakdown [MiB] | total    free    self   model   context   compute    unaccounted |
P|   - Vulkan0 (Fake 12G) | 12288 = 11888 + (4497 =  1989 +    2176 +     332) +       -4097 |
P|   - Vulkan1 (Fake 12G) | 12288 = 11888 + (4378 =  2166 +    1920 +     292) +       -3978 |
P|   - Host               |                   489 =   281 +       0 +     208                |
0.00.111.000 I anything else
""".replace("P|", f"{P}|")
RECORD = {
    "type": "fit_memory_breakdown",
    "data": {
        "unit": "MiB",
        "rows": [
            {
                "kind": "device",
                "name": "Vulkan0",
                "description": "llvmpipe (LLVM 21.1.8, 256 bits)",
                "total": 24_105,
                "free": 23_595,
                "self": 16,
                "model": 6,
                "context": 1,
                "compute": 9,
                "unaccounted": 493,
            },
            {"kind": "host", "name": "Host", "self": 7, "model": 0, "context": 0, "compute": 7},
        ],
    },
}


def read(*lines: str) -> MemoryTableReader:
    reader = MemoryTableReader()
    for line in lines:
        reader.read_line(line)
    return reader


def test_a_text_table_without_gpus_is_parsed() -> None:
    reader = read(*TEXT.splitlines())
    assert reader.tables == [
        (MemoryTableRow("Host", False, 14_676, 2_908, 166), MemoryTableRow("CPU_REPACK", False, 1_728, 0, 0)),
        (MemoryTableRow("Host", False, 14_676, 512, 148),),
    ]
    assert reader.ended


def test_a_text_table_with_gpus_and_negative_free_memory_is_parsed() -> None:
    (table,) = read(*CARDS.splitlines()).tables
    assert table[0] == MemoryTableRow("Vulkan0", True, 1_989, 2_176, 332, 12_288, 11_888)
    assert [row.name for row in table] == ["Vulkan0", "Vulkan1", "Host"]
    assert [row.is_device for row in table] == [True, True, False]


def test_a_table_is_complete_once_another_line_follows() -> None:
    lines = CARDS.splitlines()
    assert read(*lines[:-1]).tables == []
    assert len(read(*lines).tables) == 1


def test_json_lines_are_parsed() -> None:
    reader = read(json.dumps(RECORD))
    assert reader.tables == [
        (MemoryTableRow("Vulkan0", True, 6, 1, 9, 24_105, 23_595), MemoryTableRow("Host", False, 0, 0, 7)),
    ]
    assert not reader.ended
    reader.read_line(json.dumps({"type": "log", "msg": "fit: projected to use 23403 MiB of device memory\n"}))
    assert reader.ended


def test_text_in_json_lines_is_parsed_without_records() -> None:
    lines = [json.dumps({"type": "log", "level": "info", "msg": f"{line}\n"}) for line in TEXT.splitlines()]
    assert read(*lines).tables == read(*TEXT.splitlines()).tables
    assert len(read(json.dumps(RECORD), *lines).tables) == 1


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "{}",
        "[]",
        "{1: 2}",
        '{"type": "fit_memory_breakdown"}',
        '{"type": "fit_memory_breakdown", "data": []}',
        '{"type": "fit_memory_breakdown", "data": {"rows": {}}}',
        '{"type": "fit_memory_breakdown", "data": {"rows": [7]}}',
        '{"type": "fit_memory_breakdown", "data": {"rows": []}}',
        '{"msg": 7}',
        "| memory breakdown [MiB] |",
        "|   - Host | 1 = x + 2 + 3 |",
        "|   - Host | |",
        "| | | |",
    ],
)
def test_other_tables_are_skipped(line: str) -> None:
    reader = read(line, line, "the end")
    assert (reader.tables, reader.ended) == ([], False)


def test_invalid_figures_are_skipped() -> None:
    row = {"kind": "device", "name": "CUDA0", "model": 6, "context": 1, "compute": 9}
    (table,) = read(json.dumps({"type": "fit_memory_breakdown", "data": {"rows": [row]}})).tables
    assert table == (MemoryTableRow("CUDA0", True, 6, 1, 9, None, None),)
    for wrong in ({"model": "6"}, {"context": None}, {"compute": 9.5}, {"name": None}, {"model": True}):
        record = {"type": "fit_memory_breakdown", "data": {"rows": [row, row | wrong]}}
        assert read(json.dumps(record)).tables == []


@settings(derandomize=True)
@given(st.lists(st.text(alphabet='|-{}[]":,+=() 0123456789aHost\n', max_size=80), max_size=8))
def test_any_output_is_read_without_an_error(lines: list[str]) -> None:
    read("0 I | memory breakdown [MiB] |", *lines, TEXT.splitlines()[2], "end")
