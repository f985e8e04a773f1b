"""Diagnosis of an engine failure: finds the first cause in its log and returns it with a hint and suggested fixes.

The signatures in resources/engine-faults.toml match texts of llama.cpp b10605 to b11669. Only the last run in a log is
read. A fatal fault takes precedence over others, and of several fatal ones the first, because later ones are symptoms.
If no signature knows the cause, the engine's sentence is read: "error loading model: X" means that it refused X.
Fatal faults before a line that reports a loaded model do not count, because the engine recovered from them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from launcher.base.action import Action, ActionKind
from launcher.base.errors import EngineFailed, LauncherError
from launcher.base.messages import FaceName, Message, fill_template, join_messages, message
from launcher.engine.diagnosis.log_reading import (
    FaultMatch,
    extract_last_run,
    find_failed_test_load,
    find_matches,
    is_retried,
    last_loaded_offset,
    parse_line,
    text_around,
)
from launcher.engine.diagnosis.signatures import (
    FACE_NAMES,
    ActionData,
    FaultSignature,
    Severity,
    SignatureData,
    TopicData,
    error_types,
    fault_signatures,
    fault_topics,
)
from launcher.engine.server.process import ProcessExit

_MIB = 2**20
_FACT_LENGTH = 200
_NEAR, _FAR = 3_000, 200_000
"""Characters of the log searched for a fault's context: after its line, and before it."""
_NARROWING = 4_000
"""Characters after a fault's line in which a narrower fault is searched: see `_find_narrower`."""
_LAST_CHARACTERS = 200_000
_RANKS: tuple[Severity, ...] = ("degraded", "request", "notice")
"""The severities that are not fatal, worst first."""
_SYMPTOM = re.compile(
    r"(?:^|: |  )(?:exiting due to [\w ]+|failed to load(?: the)? model(?:,? '[^'\n]*'| from [^\n]+)?"
    r"|failed to create.context(?: with model '[^'\n]*')?|failed to create llama_context from model"
    r"|error loading model:?|Failed to init server, please check the input params|failed to load GGUF split from [^\n]+"
    r"|failed to load multimodal model(?:, '[^'\n]*')?|model is null|unable to load model)[ .]*$"
    r"|\(this is normal [\w ]+\)"
)
"""A line that only says that it failed, or that this is normal. One with a reason behind a colon is none."""
_ERROR_WORDS = re.compile(r"\b(?:error|failed|fatal|fault|exception|abort(?:ed|ing)?|cannot|refused)\b", re.IGNORECASE)
_GAP_LINES = 6
"""Lines between two errors of one failure, at most."""
_OPTIONAL_PART = re.compile(r"\[[^\[\]]*\]")
_FIRST_PLACEHOLDER = re.compile(r"\[?\{(\w+)\}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_FUNCTION = re.compile(r"^(?:(?:srv|slot|cmn|spec|init|main)? *[\w:~]+(?:\(\))?: +)+")
"""What llama.cpp writes before a message: its part and function."""
_BACKTRACE = re.compile(r"\[0x[0-9a-f]+\]|^#?\d+ +(?:0x|\S+\.dylib)|ggml_(?:abort|print_backtrace)")
_COUNTS = frozenset({"mib", "needed_mib", "expected_mib", "free_mib", "tokens", "context"})
"""Facts that are shown with thousands separators."""
_ADVICE_FOR_ALL = (ActionKind.OTHER_ENGINE_BUILD, ActionKind.REPORT)
"""The actions of a general fault that are suggested beside those of its topic."""
_CRASHED, _REFUSED, _UNEXPLAINED, _ASSERTED = "crashed", "engine_refused", "load_failed", "engine_bug"
_LEAST_STATUS = 0xC0000000
"""The first of Windows' error codes (NTSTATUS)."""
_WINDOWS_EXIT = re.compile(r"\bexit(?:ed)?\b[^\n\d-]{0,20}(-107374\d{4}|322122\d{4}|1844674407\d{10})\b", re.IGNORECASE)
"""An exit code of Windows as other programs log it: "(Exit code: 18446744072635812000)"."""
_SERVING_TEXTS = ("launch_slot_:", "update_slots:", "log_server_r:", "print_timing:")
"""Functions of a serving engine, for logs that begin later than its start."""
_FAILED_TEXTS = ("exiting due to", "Failed to init server")
ENDED_BY_OTHERS = frozenset({0, -1, -2, -9, -15, 129, 130, 137, 143, 0xC000013A})
"""Exit codes of engines that a user, another program or the system ended."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause of a failure, with suggested fixes.

    `code` and `number` identify the failure signature. `severity` is its effect. `error` is the code of the error class
    to raise. `title`, `cause` and `hint` are sentences for the user. `actions` are the suggested fixes, best first.
    `facts` are values found in the log. `line` is the log line that names the cause, empty if the exit code did.
    `is_general`: no signature knows the cause, the sentences repeat the engine's.
    """

    code: str
    number: int
    severity: Severity
    error: str
    title: str
    cause: str
    hint: str
    actions: tuple[Action, ...]
    facts: Mapping[str, str | int] = field(default_factory=dict)
    line: str = ""
    is_general: bool = False

    def as_error(self, exit_code: int | None = None) -> LauncherError:
        """Return the diagnosis as an error of class `error`."""
        kind = error_types()[self.error]
        error = kind(
            join_messages(self.title, self.cause), self.hint, diagnosis=self.code, line=self.line, exit_code=exit_code
        )
        error.attach_actions(self.actions)
        return error


def explain_exit(
    ended: ProcessExit, lines: Iterable[str], *, while_doing: str, hint: str = message("See its log.")
) -> LauncherError:
    """Return the error for an engine that ended: the cause named in its log, or else a description of its exit.

    `while_doing` completes "The engine ... while ", such as "loading the model"; `hint` is used if the log names no
    cause. Faults that are not fatal do not explain an exit.
    """
    text = "\n".join(lines)
    found = diagnose_log(text, exit_code=ended.code)
    crashed = found is not None and found.code == _CRASHED
    if found is not None and not crashed and (found.severity == "fatal" or found.facts.get("led_to")):
        return found.as_error(ended.code)
    error_line = find_error_line(text)
    title = join_messages(
        message("The engine {ended} while {while_doing}.", ended=ended, while_doing=while_doing),
        message("Its last message: {last}", last=error_line) if error_line else None,
    )
    error = EngineFailed(title, hint, exit_code=ended.code)
    if found is not None and crashed:  # the generic crash adds fixes, but its title says less than while_doing
        error.facts = {**error.facts, "diagnosis": found.code, "line": found.line}
        error.attach_actions(found.actions)
    return error


def explain_refusal(refused: LauncherError, lines: Iterable[str]) -> LauncherError:
    """Return the cause of a refused first request if the engine's log names one, otherwise `refused`."""
    found = diagnose_log("\n".join(lines))
    return found.as_error() if found is not None and found.severity == "request" and not found.is_general else refused


def diagnose_reply_error(sentence: str) -> Diagnosis | None:
    """Return the cause of an error message that the engine sent a client; None if no signature knows it.

    `sentence` is the `message` of the reply's JSON, such as "image input is not supported". Faults that end the engine
    are found, too: "decode() failed: vk::Queue::submit: ErrorDeviceLost" is a lost GPU.
    """
    text = " ".join(sentence.split())
    match = min(
        (
            match
            for match in find_matches(text)
            if not match.fault.data.at_start and (not match.fault.data.general or match.fault.code == _ASSERTED)
        ),
        key=lambda match: (match.fault.data.general, match.fault.order),
        default=None,
    )
    return _make_diagnosis(match, [match], text) if match else None


def add_cause(sentence: str, cause: Diagnosis | None) -> Message:
    """Return a sentence that has an engine's error message, and after it the cause, unless that repeats the message."""
    repeats = cause is not None and str(cause.facts.get("reason") or "\n") in cause.title
    return join_messages(sentence, None if cause is None or repeats else cause.title)


def read_exit_code(number: int) -> int:
    """Return an exit code as it is in resources/engine-faults.toml: Windows' without a sign, of 32 bits.

    Programs write it with a sign, or widen it to 64 bits, and then round it as JavaScript does: 18446744072635812000 is
    0xC0000409. Rounding joins many codes, of which the first known is taken: a crash, for which all others would be
    rare. A signal stays negative.
    """
    if -255 <= number < 2**32:
        return number
    if number < 0 or number % 1_000:  # not rounded
        return number % 2**32
    crashes = (code for fault in fault_signatures() if fault.code == _CRASHED for code in fault.data.exits)
    known = (code for code in crashes if code >= _LEAST_STATUS and float(2**64 - 2**32 + code) == float(number))
    return next(known, number % 2**32)


def diagnose_log(text: str, *, exit_code: int | None = None) -> Diagnosis | None:
    """Return the first cause of failure in the last run of a log; None if it names none.

    `exit_code` is the engine's exit code as any program writes it (see `read_exit_code`), None if unknown or still
    running. One of Windows that the log names counts as well.
    """
    run_text = extract_last_run(text)
    if exit_code is None and (written := _WINDOWS_EXIT.search(run_text)):
        exit_code = int(written[1])
    exit_code = None if exit_code is None else read_exit_code(exit_code)
    matches = _drop_repeated(find_matches(run_text))
    matches = [match for match in matches if _has_evidence(match.fault, run_text)]
    is_serving = last_loaded_offset(run_text) >= 0 or any(text in run_text for text in _SERVING_TEXTS)
    if exit_code != 0 and (fatal := _find_first_fatal(matches, run_text, is_serving=is_serving)):
        cause = next(
            (
                match
                for match in matches
                if fatal.fault.code in match.fault.data.explains and match.offset < fatal.offset
            ),
            None,
        )
        if cause is None:
            last_error = _diagnose_last_error(run_text) if fatal.fault.code == _UNEXPLAINED else None
            return last_error or _make_diagnosis(fatal, matches, run_text)
        diagnosis = _make_diagnosis(cause, matches, run_text)
        return replace(diagnosis, facts={**diagnosis.facts, "led_to": fatal.fault.code})
    if exit_code:
        by_exit = next((fault for fault in fault_signatures() if exit_code in fault.data.exits), None)
        if by_exit is not None:
            error = find_last_error(run_text, adjacent=is_serving) if by_exit.code == _CRASHED else None
            facts = {"reason": error} if error else {}
            return _make_diagnosis(FaultMatch(len(run_text), by_exit, error or "", facts), matches, run_text)
    if exit_code or any(ending in run_text for ending in _FAILED_TEXTS):
        # It failed, and faults that are not fatal cannot be the cause.
        return None if exit_code in ENDED_BY_OTHERS else _diagnose_last_error(run_text, adjacent=is_serving)
    loaded = last_loaded_offset(run_text)
    not_fatal = [
        match
        for match in matches
        if match.fault.data.severity in _RANKS and not (match.fault.data.until_loaded and match.offset < loaded)
    ]
    worst = min(
        not_fatal,
        key=lambda match: (
            _RANKS.index(match.fault.data.severity),
            match.fault.data.general,
            match.offset,
            match.fault.order,
        ),
        default=None,
    )
    return _make_diagnosis(worst, matches, run_text) if worst else None


def find_error_line(text: str) -> str | None:
    """Return the line of the last run that explains its end best: its last error, or else its last line.

    None for an empty log.
    """
    run_text = extract_last_run(text)
    if error := find_last_error(run_text):
        return error
    lines = [line for raw in run_text[-_LAST_CHARACTERS:].split("\n") if (line := parse_line(raw).text.strip())]
    errors = [line for line in lines if _ERROR_WORDS.search(line)]
    return _clean_text((errors or lines)[-1]) if lines else None


def find_last_error(run_text: str, *, adjacent: bool = False) -> str | None:
    """Return the first line of the last errors of a run; None if it has none but symptoms.

    Errors follow each other when an engine fails, the cause first. Lines that only say that it failed are symptoms.
    With `adjacent`, errors count only if they are at the end of the text.
    """
    first, gap = None, 0
    for raw in reversed(run_text[-_LAST_CHARACTERS:].split("\n")):
        line = parse_line(raw)
        text = line.text.strip()
        is_error = line.level == "E" or (line.level is None and _ERROR_WORDS.search(text) is not None)
        if is_error and not _SYMPTOM.search(text) and not _BACKTRACE.search(text):
            first, gap = text, 0
        elif text and (first is not None or adjacent):
            gap += 1
            if gap > _GAP_LINES:
                break
    return _clean_text(first) if first else None


def _diagnose_last_error(run_text: str, *, adjacent: bool = False) -> Diagnosis | None:
    """Return the general diagnosis of a run that failed: its last error is what the engine refused."""
    error = find_last_error(run_text, adjacent=adjacent)
    fault = next((fault for fault in reversed(fault_signatures()) if fault.code == _REFUSED), None)
    if error is None or fault is None:
        return None
    reason = _FUNCTION.sub("", error)
    return _make_diagnosis(FaultMatch(len(run_text), fault, error, {"reason": reason}), [], run_text)


def _drop_repeated(matches: list[FaultMatch]) -> list[FaultMatch]:
    """Return the matches without general ones on lines that a signature knows, or that are only symptoms."""
    known = {match.offset for match in matches if not match.fault.data.general}
    return [
        match
        for match in matches
        if not match.fault.data.general
        or (match.offset not in known and not _SYMPTOM.search(str(match.facts.get("reason", ""))))
    ]


def _find_first_fatal(matches: list[FaultMatch], run_text: str, *, is_serving: bool) -> FaultMatch | None:
    """Return the fault that ended the engine. While it serves, sentences about what it refused end nothing."""
    loaded = last_loaded_offset(run_text)
    fatal = [
        match
        for match in matches
        if match.fault.data.severity == "fatal"
        and match.offset > loaded
        and not is_retried(run_text, match.offset)
        and not (is_serving and match.fault.code in (_REFUSED, _UNEXPLAINED))
    ]
    test_load = find_failed_test_load(run_text)
    return min(
        fatal,
        key=lambda match: (
            match.fault.code == _UNEXPLAINED,
            match.fault.data.general,
            match.offset in test_load,
            match.offset,
            match.fault.order,
        ),
        default=None,
    )


def _has_evidence(fault: FaultSignature, run_text: str) -> bool:
    """Return whether the log contains one of the fault's `evidence` patterns, if any, and none of its `absent` ones."""
    has_evidence = not fault.evidence or any(each.search(run_text) for each in fault.evidence)
    return has_evidence and not any(each.search(run_text) for each in fault.absent)


def _make_diagnosis(match: FaultMatch, matches: list[FaultMatch], run_text: str) -> Diagnosis:
    """Make the diagnosis of a match.

    It has facts from the lines around the match, and from a match that names the cause more closely: see
    `_find_narrower`.
    """
    data = match.fault.data
    facts = _parse_facts(match.facts)
    narrower = _find_narrower(match, matches)
    if narrower is not None and narrower.fault.data.part:
        facts = _parse_facts(narrower.facts) | facts
        facts["part"] = fill_template(narrower.fault.data.part, {})
    if match.fault.context:
        above, below = text_around(run_text, match.offset, _FAR, _NEAR)
        for regex in match.fault.context:
            nearest = regex.search(below) or next(reversed(list(regex.finditer(above))), None)
            if nearest is not None:
                facts = _parse_facts({name: value for name, value in nearest.groupdict().items() if value}) | facts
    if _needed_was_free(facts):  # a forecast that fits would contradict the message that there is not enough memory
        facts["expected_mib"] = facts.pop("needed_mib")
    advice: SignatureData | TopicData = narrower.fault.data if narrower else data
    if data.general and data.severity == "fatal":
        if "reason" not in facts and (earlier := find_last_error(run_text[: match.offset], adjacent=True)):
            facts["reason"] = _FUNCTION.sub("", earlier)
        advice = _find_topic(match, facts, run_text) or data
    own = data.actions if narrower else [each for each in data.actions if each.kind in _ADVICE_FOR_ALL]
    actions = [*advice.actions, *own] if advice is not data else data.actions
    if last_loaded_offset(run_text) < 0:  # what failed to load would fail again
        actions = [each for each in actions if each.kind is not ActionKind.RESTART] or actions
    return Diagnosis(
        data.code,
        data.number,
        data.severity,
        data.error,
        _fill_facts(data.title, facts),
        _fill_facts(data.cause, facts),
        _fill_facts(advice.hint, facts),
        tuple(_first_of_each_kind(_make_action(each, facts) for each in actions)),
        facts,
        _clean_text(match.line),
        data.general,
    )


def _find_topic(match: FaultMatch, facts: Mapping[str, str | int], run_text: str) -> TopicData | None:
    """Return what a general fault is about: the words of its line, its facts, and of the functions listed after it."""
    after = run_text[match.offset : match.offset + _NEAR].split("\n")[1:]
    text = "\n".join((match.line, *map(str, facts.values()), *(line for line in after if _BACKTRACE.search(line))))
    return next((topic for words, topic in fault_topics() if words.search(text)), None)


def _find_narrower(match: FaultMatch, matches: list[FaultMatch]) -> FaultMatch | None:
    """Return a later match that names which part of the engine a lack of memory affected; None if there is none."""
    near = [each for each in matches if match.offset <= each.offset <= match.offset + _NARROWING]
    by_code = {each.fault.code: each for each in reversed(near)}
    return next((by_code[code] for code in reversed(match.fault.data.narrowed_by) if code in by_code), None)


def _needed_was_free(facts: Mapping[str, str | int]) -> bool:
    """Return whether the engine's own forecast, which the log has before the failure, fitted into the free memory."""
    needed_mib, free_mib = facts.get("needed_mib"), facts.get("free_mib")
    return isinstance(needed_mib, int) and isinstance(free_mib, int) and needed_mib <= free_mib


def _parse_facts(texts: Mapping[str, str]) -> dict[str, str | int]:
    facts: dict[str, str | int] = {}
    for name, value in texts.items():
        if name == "bytes":
            facts["mib"] = -(-int(value) // _MIB)
        elif name.endswith("mib"):
            facts[name] = round(float(value))
        elif value.isdecimal() and len(value) < 12:
            facts[name] = int(value)
        elif text := _clean_text(value).rstrip(" .:"):
            facts[name] = text
    return facts


def _clean_text(text: str) -> str:
    """Return text from a log cleaned for display: one line, at most `_FACT_LENGTH` characters, all printable."""
    clean = "".join(char if char.isprintable() else " " for char in text.strip())
    return clean if len(clean) <= _FACT_LENGTH else clean[: _FACT_LENGTH - 1] + "…"


def _fill_facts(template: str, facts: Mapping[str, str | int]) -> Message:
    """Fill facts of the log, and `FACE_NAMES`, into a sentence template.

    A part in brackets is dropped if its fact is unknown. Outside of brackets, an unknown fact becomes "unknown".
    """

    def format_fact(name: str) -> str | FaceName | None:
        fact = FACE_NAMES.get(name, facts.get(name))
        if fact is None or isinstance(fact, FaceName):
            return fact
        return f"{fact:,}" if isinstance(fact, int) and name in _COUNTS else str(fact)

    required = _PLACEHOLDER.findall(_OPTIONAL_PART.sub("", template))
    texts: dict[str, str | FaceName | None] = {name: format_fact(name) for name in _PLACEHOLDER.findall(template)}
    texts |= {name: message("unknown") for name in required if texts[name] is None}
    if begin := _FIRST_PLACEHOLDER.match(template):  # the sentence begins with a fact: capitalize it
        first = texts[begin[1]]
        texts[begin[1]] = first[:1].upper() + first[1:] if isinstance(first, str) else first
    return fill_template(template, texts)


def _make_action(data: ActionData, facts: Mapping[str, str | int]) -> Action:
    """Return a suggested fix with facts filled in; values of unknown facts are left out."""
    values: dict[str, str | int] = {}
    for name, value in data.parameters.items():
        placeholders = _PLACEHOLDER.findall(str(value))
        if not placeholders:
            values[name] = value
        elif placeholders[0] in facts:
            values[name] = facts[placeholders[0]]
    return Action(data.kind, _fill_facts(data.label, facts), values)


def _first_of_each_kind(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the first action of each kind."""
    seen: set[ActionKind] = set()
    for action in actions:
        if action.kind not in seen:
            seen.add(action.kind)
            yield action
