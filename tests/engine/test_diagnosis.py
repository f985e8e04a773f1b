"""The diagnosis of engines' logs: every signature, in every log format, and the first cause before its symptoms."""

import json
import string
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from launcher.engine.diagnosis.explain import (
    diagnose_log,
    diagnose_reply_error,
    explain_exit,
    find_error_line,
)
from launcher.engine.diagnosis.log_reading import find_matches, parse_line
from launcher.engine.diagnosis.signatures import fault_signatures, find_needle
from launcher.engine.server.process import ProcessExit

LOGS = Path(__file__).parents[1] / "data" / "logs"
EXAMPLES: list[dict[str, Any]] = tomllib.loads((LOGS / "signatures.toml").read_text("utf-8"))["example"]
TEXTS = [example["text"] for example in EXAMPLES]
LETTERS = {"E": "error", "W": "warn", "I": "info"}


def exit_of(example: dict[str, Any]) -> int | None:
    return None if example.get("no_exit_code") else int(example.get("exit_code", 1))


def example_title(example: dict[str, Any]) -> str:
    return f"{example['code']}: {example['text'].strip()[:40]}"


def as_json_lines(text: str) -> str:
    """The same log as `--log-jsonl` writes it; what does not come from the engine's own log stays plain."""
    lines = []
    for number, raw in enumerate(text.splitlines()):
        line = parse_line(raw)
        entry = {"type": "log", "time": number, "level": LETTERS.get(line.level or "E"), "msg": line.text + "\n"}
        lines.append(json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("example", EXAMPLES, ids=example_title)
def test_a_fault_is_found_in_every_log_format_and_described_in_sentences(example: dict[str, Any]) -> None:
    text = example["text"]
    found = diagnose_log(text, exit_code=exit_of(example))
    assert found is not None
    assert found.code == example["code"]
    assert {**found.facts, **example.get("facts", {})} == dict(found.facts)
    for sentence in (found.title, found.cause, found.hint):
        assert sentence[0] in string.ascii_uppercase + string.digits + "`/-"
        assert sentence.endswith((".", ")"))
        assert not {"{", "}", "[", "]"} & set(sentence.replace("[0, ", ""))
        assert "unknown" not in sentence
        assert ".." not in sentence.replace("...", "")
    assert found.actions[0].label
    assert "{" not in found.actions[0].label
    if example.get("plain_only"):  # the diagnosis depends on the order of its lines
        return
    lines = text.splitlines()
    for dress in (
        as_json_lines(text),
        "\n".join(f"2026-11-20 21:07:{number % 60:02},123 {line}" for number, line in enumerate(lines)),
        "\n".join(f"Nov 20 21:07:01 host llama-server[4711]: {line}" for line in lines),
        "\n".join(f"llama-1  | {line}" for line in lines),
    ):
        dressed = diagnose_log(dress, exit_code=exit_of(example))
        assert dressed is not None, dress
        assert dressed.code == example["code"], dress


def test_counts_have_separators_and_a_port_is_none() -> None:
    busy = diagnose_log("couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9101", exit_code=1)
    assert busy is not None
    assert busy.title == "Port 9101 is in use by another program."


def test_every_signature_has_an_example() -> None:
    assert {fault.code for fault in fault_signatures()} == {example["code"] for example in EXAMPLES}


def test_every_pattern_is_needed() -> None:
    values = {text: "\n".join(parse_line(raw).text for raw in text.split("\n")) for text in TEXTS}
    for fault in fault_signatures():
        own = [example["text"] for example in EXAMPLES if example["code"] == fault.code]
        for pattern in fault.patterns:
            matched = [text for text in own if pattern.regex.search(values[text])]
            assert matched, (fault.code, pattern.regex.pattern)
            assert all(pattern.needle in text for text in matched), (fault.code, pattern.regex.pattern)


class TestFirstCause:
    def test_the_first_fatal_line_is_the_cause(self) -> None:
        text = (
            "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 512.00 MiB on device 0: cudaMalloc failed: out of"
            " memory\nE failed to create MTP context\nE srv  llama_server: exiting due to model loading error\n"
        )
        found = diagnose_log(text, exit_code=1)
        assert found is not None
        assert found.code == "cuda_out_of_memory"
        assert "for the MTP context" in found.title
        assert found.actions[0].kind == "draft_off"

    @pytest.mark.parametrize(("needed_mib", "said"), [(10_968, "had expected 10,968 MiB"), (12_300, "12,300 MiB are")])
    def test_a_forecast_that_fitted_is_not_said_to_be_the_cause(self, needed_mib: int, said: str) -> None:
        text = (
            f"I common_params_fit_impl: projected to use {needed_mib} MiB of device memory vs. 11698 MiB of free device"
            " memory\nE ggml_backend_cuda_buffer_type_alloc_buffer: allocating 189.00 MiB on device 0: cudaMalloc"
            " failed: out of memory\nE llama_init_from_model: failed to allocate buffer for rs cache\n"
        )
        found = diagnose_log(text, exit_code=1)
        assert found is not None
        assert "for the recurrent state" in found.title
        assert said in found.cause
        assert found.cause.count("11,698 MiB") == 1

    def test_a_warning_alone_does_not_explain_an_end(self) -> None:
        text = "warning: no usable GPU found, --gpu-layers option will be ignored\nE srv start: something quite new\n"
        found = diagnose_log(text, exit_code=3)
        assert found is not None
        assert (found.code, found.facts) == ("engine_refused", {"reason": "something quite new"})
        assert "something quite new" in explain_exit(ProcessExit(3), text.split("\n"), while_doing="serving").title
        warning_only = text.split("\n")[0]
        assert diagnose_log(warning_only, exit_code=3) is None

    def test_a_warning_that_led_to_the_end_is_the_cause(self) -> None:
        text = (
            "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version\n"
            'error while handling argument "--device": invalid device: CUDA0\n'
        )
        error = explain_exit(ProcessExit(1), text.split("\n"), while_doing="loading the model")
        assert error.code == "gpu_unseen"
        assert "driver" in error.title

    def test_errors_that_the_engine_recovered_from_do_not_count(self) -> None:
        text = (
            "0.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 1: cudaMalloc"
            " failed: out of memory\n"
            "0.06.520.086 E graph_reserve: failed to allocate compute buffers\n"
            "0.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
            "0.07.304.130 I srv    load_model: initializing, n_slots = 1\n"
        )
        bind = "0.07.400.000 E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n"
        assert getattr(diagnose_log(text + bind, exit_code=1), "code", None) == "port_busy"
        loaded = text + "0.07.500.000 I srv  llama_server: model loaded\n"
        assert diagnose_log(loaded, exit_code=0) is None
        crash = "0.09.000.000 E CUDA error: out of memory\n"
        assert getattr(diagnose_log(loaded + crash, exit_code=-6), "code", None) == "cuda_out_of_memory_running"

    def test_errors_of_a_trial_load_count_only_without_others(self) -> None:
        tried = (
            "0.00.141.658 I srv    load_model: loading model 'm.gguf'\n"
            "0.00.212.569 E llama_init_from_model: quantized V cache requires flash_attn to be enabled\n"
            "0.00.218.663 E common_fit_params: encountered an error while trying to fit params to free device memory\n"
        )
        ended = "0.10.262.943 E llama_model_load: error loading model: unable to allocate Vulkan0 buffer\n"
        assert getattr(diagnose_log(tried + ended, exit_code=1), "code", None) == "weights_too_big"
        assert getattr(diagnose_log(tried, exit_code=1), "code", None) == "kv_types"

    def test_only_the_last_run_counts(self) -> None:
        broken = (
            "0.00.000.700 I srv  llama_server: initializing ...\n"
            "0.00.006.502 E gguf_init_from_file: failed to open GGUF file 'm.gguf' (No such file or directory)\n"
            "0.00.006.844 E srv  llama_server: exiting due to model loading error\n"
        )
        sound = (
            "load_backend: loaded CPU backend from /usr/lib/libggml-cpu.so\n"
            "0.00.000.600 I srv  llama_server: initializing ...\n"
            "0.00.090.000 I srv  llama_server: model loaded\n"
            "0.00.095.000 I srv  llama_server: listening on http://127.0.0.1:9102\n"
        )
        assert diagnose_log(broken + sound) is None
        assert getattr(diagnose_log(sound + broken), "code", None) == "model_unreadable"
        assert (
            getattr(diagnose_log(sound + broken + "error: invalid argument: --foo\n"), "code", None) == "unknown_flag"
        )
        assert diagnose_log(broken + "error: invalid argument: --foo\n" + sound) is None

    def test_a_found_gpu_is_not_reported_as_missing(self) -> None:
        """Builds from b9031 on warn of no GPU before they load the backends."""
        text = (
            "warning: no usable GPU found, --gpu-layers option will be ignored\n"
            "load_backend: failed to find ggml_backend_init in /opt/libggml-hip.so\n"
            "register_backend: registered backend ROCm (2 devices)\n"
            "ggml_cuda_init: found 1 CUDA devices:\nload_backend: loaded CUDA backend from C:\\ggml-cuda.dll\n"
            "load_backend: loaded CPU backend from C:\\ggml-cpu.dll\n0.01.000.000 I srv  llama_server: model loaded\n"
        )
        assert diagnose_log(text, exit_code=0) is None

    def test_a_refused_fit_matters_only_until_the_model_is_loaded(self) -> None:
        text = "0.00.100.000 W common_fit_params: failed to fit params to free device memory: abort\n"
        assert getattr(diagnose_log(text), "code", None) == "fit_refused"
        assert diagnose_log(text + "0.01.000.000 I srv  llama_server: model loaded\n") is None

    def test_a_failed_request_does_not_explain_an_end(self) -> None:
        text = "srv send_error: request (9017 tokens) exceeds the available context size (4096 tokens)\n"
        assert getattr(diagnose_log(text), "code", None) == "context_exceeded"
        assert getattr(diagnose_log(text, exit_code=-9), "code", None) == "killed"


class TestSentences:
    """Causes that no signature knows, read from the form of the engine's sentence."""

    REFUSED = (
        "0.00.001.241 I srv  llama_server: initializing ...\n"
        "0.00.320.010 E llama_model_load: error loading model: the hyperdrive needs 3 moons, but got 2\n"
        "0.00.320.020 E llama_model_load_from_file_impl: failed to load model\n"
        "0.00.370.000 E srv  llama_server: exiting due to model loading error\n"
    )

    def test_what_the_loader_refused_is_said_in_its_words(self) -> None:
        found = diagnose_log(self.REFUSED, exit_code=1)
        assert found is not None
        assert found.title == "The engine refused the model: the hyperdrive needs 3 moons, but got 2."
        assert found.is_general
        assert "restart" not in [action.kind for action in found.actions]

    @pytest.mark.parametrize(
        "line",
        [
            "/src/ggml/src/ggml-x/x.cpp:12: the hyperdrive is cold",
            "0.00.400.000 E srv    load_model: failed to initialize the hyperdrive: the hyperdrive is cold",
            "rocBLAS error: the hyperdrive is cold",
            "error: the hyperdrive is cold",
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  the hyperdrive is cold",
            "0.00.400.000 E CUDA error: the hyperdrive is cold\n0.00.400.001 E   current device: 0, in function x",
        ],
    )
    def test_every_form_of_a_cause_is_read(self, line: str) -> None:
        found = diagnose_log(line + "\n", exit_code=1)
        assert found is not None
        assert "the hyperdrive is cold" in found.title

    def test_a_known_cause_comes_before_the_sentence_about_it(self) -> None:
        known = "0.00.330.000 E gguf_init_from_reader: failed to read magic\n"
        found = diagnose_log(self.REFUSED + known, exit_code=1)
        assert found is not None
        assert found.code == "not_gguf"

    def test_a_line_that_goes_on_with_a_reason_is_no_symptom(self) -> None:
        text = (
            "0.00.320.001 E mtp_init: failed to load model: the hyperdrive is cold\n"
            "0.00.320.010 E llama_model_load: error loading model: loader: failed to load model from a.gguf\n"
            "0.00.320.020 E srv    load_model: failed to load model, 'a.gguf'\n"
            "0.00.370.000 E srv  llama_server: exiting due to model loading error\n"
        )
        assert find_error_line(text) == "mtp_init: failed to load model: the hyperdrive is cold"
        assert "the hyperdrive is cold" in getattr(diagnose_log(text, exit_code=1), "title", "")

    def test_only_symptoms_name_the_file_and_no_cause(self) -> None:
        text = (
            "0.00.320.010 E llama_model_load: error loading model: loader: failed to load model from a.gguf\n"
            "0.00.320.020 E srv    load_model: failed to load model, 'a.gguf'\n"
            "0.00.370.000 E srv  llama_server: exiting due to model loading error\n"
        )
        found = diagnose_log(text, exit_code=1)
        assert found is not None
        assert found.title == "The engine could not load the model a.gguf, and its log does not say why."
        end = "0.00.370.000 E srv  llama_server: exiting due to model loading error\n"
        assert diagnose_log(end, exit_code=1) is None

    @pytest.mark.parametrize(
        ("reason", "first"),
        [
            ("the flash attention kernel is missing", "add_flag"),
            ("cannot allocate 12 hyperdrives", "smaller_context"),
            ("the certificate of the hub is from tomorrow", "check_network"),
            ("clip_hyperdrive: too many moons", "other_engine_build"),
            ("no speculative moons", "draft_off"),
            ("quantized V cache of type moon", "other_kv_type"),
        ],
    )
    def test_the_words_of_a_reason_choose_the_advice(self, reason: str, first: str) -> None:
        found = diagnose_log(f"E srv    load_model: failed to initialize the hyperdrive: {reason}\n", exit_code=1)
        assert found is not None
        assert found.actions[0].kind == first

    def test_the_functions_listed_after_an_abort_say_what_it_is_about(self) -> None:
        listed = "libggml-cuda.so(_Z24ggml_cuda_flash_attn_extR25ggml_backend_cuda_context+0x1ab3)[0x7fa006e26d13]\n"
        found = diagnose_log("/src/ggml/src/ggml-cuda/mma.cuh:110: fatal error\n" + listed, exit_code=134)
        assert found is not None
        assert found.actions[0].parameters == {"flag": "--flash-attn", "value": "off"}

    def test_an_error_just_before_a_failed_check_is_its_reason(self) -> None:
        text = (
            "2.10.300.100 E drive: failed to prepare the moons\n"
            "/src/drive.cpp:28: GGML_ASSERT(ret == 0) failed\nlibggml-base.so(ggml_abort+0x157)[0x7f2f0c6b0a2f]\n"
        )
        found = diagnose_log(text, exit_code=134)
        assert found is not None
        assert (
            found.title
            == "The engine stopped because of an internal error: failed to prepare the moons (drive.cpp:28)."
        )
        apart = text.replace("moons\n", "moons\n" + "2.10.300.200 I srv  idle\n" * 20)
        assert "moons" not in getattr(diagnose_log(apart, exit_code=134), "title", "moons")

    def test_the_cause_is_the_first_of_the_last_errors(self) -> None:
        request = "0.10.000.000 E srv  process: the client sent a cat\n" + "0.10.000.001 I srv  idle\n" * 20
        end = "0.20.000.000 E srv  drive: the hyperdrive is cold\n0.20.000.001 E srv  drive: no moons\n"
        assert find_error_line(request + end) == "srv  drive: the hyperdrive is cold"

    def test_a_crash_is_said_with_its_last_error(self) -> None:
        found = diagnose_log("0.20.000.000 E srv  drive: the hyperdrive is cold\n", exit_code=-11)
        assert found is not None
        assert found.code == "crashed"
        assert found.title == "The engine crashed. Its last error: srv  drive: the hyperdrive is cold."

    def test_a_serving_engine_is_not_said_to_have_refused(self) -> None:
        text = (
            "0.01.000.000 I srv  llama_server: model loaded\n"
            "0.10.000.000 E srv  save_slot: failed to open the slot's file: No space left on device\n"
        )
        assert diagnose_log(text) is None
        assert getattr(diagnose_log(text, exit_code=1), "code", None) == "engine_refused"

    def test_an_old_error_does_not_explain_the_end_of_a_serving_engine(self) -> None:
        served = "0.01.000.000 I srv  llama_server: model loaded\n"
        refused = "0.10.000.000 E srv  save_slot: failed to open the slot's file: No space left on device\n"
        idle = "0.20.000.000 I srv  update_slots: all slots are idle\n" * 20
        assert diagnose_log(served + refused + idle, exit_code=1) is None
        assert getattr(diagnose_log(served + refused + idle, exit_code=-11), "title", "") == "The engine crashed."

    @pytest.mark.parametrize("exit_code", [-15, 130, 143, 0xC000013A])
    def test_who_ended_an_engine_is_no_error_in_its_log(self, exit_code: int) -> None:
        text = (
            "0.01.000.000 I srv  llama_server: model loaded\n"
            "0.10.000.000 E srv  save_slot: failed to open the slot's file: No space left on device\n"
        )
        assert diagnose_log(text, exit_code=exit_code) is None

    def test_a_warning_before_the_model_is_loaded_is_no_refusal(self) -> None:
        text = "0.00.100.000 W common_init: failed to open the cache: No such file or directory\n"
        assert diagnose_log(text) is None

    @pytest.mark.parametrize("code", ["gpu_lost", "gpu_timeout", "gpu_fault"])
    def test_what_failed_while_it_loaded_is_not_started_again(self, code: str) -> None:
        example = next(each for each in EXAMPLES if each["code"] == code)
        loading = diagnose_log(example["text"], exit_code=134)
        serving = diagnose_log("0.01.000.000 I srv  llama_server: model loaded\n" + example["text"], exit_code=134)
        assert loading is not None
        assert serving is not None
        assert "restart" not in [action.kind for action in loading.actions]
        assert "restart" in [action.kind for action in serving.actions]


class TestRepliedErrors:
    @pytest.mark.parametrize(
        ("sentence", "code"),
        [
            (
                "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
                "no_projector",
            ),
            ("decode() failed: vk::Queue::submit: ErrorDeviceLost", "gpu_lost"),
            (
                "\n------------\nWhile executing CallExpression at line 3, column 7 in source:\n...\nError: no",
                "template_refused",
            ),
            ("Failed to initialize samplers: failed to parse grammar", "grammar_refused"),
            ("This server does not support reranking. Start it with `--reranking`", "endpoint_off"),
            ("the request exceeds the available context size, try increasing it", "context_exceeded"),
            ("decode() failed: std::bad_alloc", "host_out_of_memory_running"),
            ("'messages' is required", "request_invalid"),
            ("something that nobody knows", None),
            ("", None),
        ],
    )
    def test_the_message_of_a_reply_is_read(self, sentence: str, code: str | None) -> None:
        found = diagnose_reply_error(sentence)
        assert (found.code if found else None) == code


class TestHostileText:
    def test_prompt_text_in_a_debug_line_is_no_fault(self) -> None:
        assert diagnose_log("0.10.000.000 D srv prompt: CUDA error: out of memory\n", exit_code=1) is None

    def test_facts_are_printable_and_short(self) -> None:
        name = "a\x1b]52;c;evil\x07\u202egnp." + "x" * 5_000
        found = diagnose_log(f"E gguf_init_from_file: failed to open GGUF file '{name}' (No such file)\n", exit_code=1)
        assert found is not None
        assert found.title.isprintable()
        assert len(found.title) < 400

    def test_placeholders_in_a_fact_are_not_filled(self) -> None:
        found = diagnose_log("error: invalid argument: --{reason}[{file}]\n", exit_code=1)
        assert found is not None
        assert "--{reason}[{file}]" in found.title

    @pytest.mark.parametrize("filler", ["-", "a", " ", ".", "'", "(", "1", "gguf_init_from"])
    def test_a_line_made_for_slow_matching_is_read_fast(self, filler: str) -> None:
        """Without limits on repetitions in patterns, single searches took 15 s here; now all take 0.2 s together."""
        run = filler * (18_000 // len(filler))
        began_s = time.process_time()
        for fault in fault_signatures():
            for pattern in fault.patterns:
                pattern.regex.search(run + pattern.needle)
                pattern.regex.search(pattern.needle + run)
        assert time.process_time() - began_s < 3

    def test_nul_bytes_and_partial_characters_are_read(self) -> None:
        for text in ("", "\n", "\0\0\0", '{"type":"log","msg":', '{"type":"log","level":3,"msg":null}', "0.00"):
            assert diagnose_log(text) is None
            assert diagnose_log(text, exit_code=1) is None
            assert isinstance(find_error_line(text), str | None)


class TestLastError:
    def test_the_first_error_that_is_not_a_symptom_is_found(self) -> None:
        text = (
            "0.1 I fine\n0.00.000.100 E srv  load: the flux capacitor is dry\n"
            "0.00.000.200 E srv  load_model: failed to load model, 'x'\n"
            "0.00.000.300 E srv  llama_server: exiting due to model loading error\n"
        )
        assert find_error_line(text) == "srv  load: the flux capacitor is dry"

    def test_an_empty_log_has_no_diagnosis(self) -> None:
        assert find_error_line("\n\n") is None


class TestNeedles:
    @pytest.mark.parametrize(
        ("pattern", "needle"),
        [
            (r"a plain text\.", "a plain text."),
            (r"failed to (?:read|write) the (?P<what>\w+) of it", "failed to "),
            (r'said "(?P<x>[^"]+)" at once', " at once"),
            (r"(?P<whole>nothing else here)", "nothing else here"),
            (r"the letters? \(f\)", "the letter"),
        ],
    )
    def test_the_longest_literal_text_of_a_pattern_is_found(self, pattern: str, needle: str) -> None:
        assert find_needle(pattern) == needle

    def test_a_pattern_without_a_literal_text_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no literal text"):
            find_needle(r"a|b\w+")


def test_a_repeated_fault_is_read_up_to_a_limit() -> None:
    text = "0.00.000.101 E unable to allocate CPU buffer\n" * 100_000
    assert 0 < len(find_matches(text)) < 200
