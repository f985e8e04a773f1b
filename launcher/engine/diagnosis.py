"""Why an engine did not start or ended: the first cause in its log, as a sentence with a next step.

The texts are llama.cpp's own (b10605 to b11669): resources/engine-faults.toml. A log is read for its last run. What
ends an engine comes before what only hinders it; of several causes the first line counts, for what follows are its
symptoms; and what the engine got over, since it said later that the model is loaded, does not count.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from launcher.base.errors import EngineFailed, LauncherError
from launcher.base.words import part
from launcher.engine.action import Action, ActionKind
from launcher.engine.diagnosis_data import ActionData, Fault, Severity, error_types, faults
from launcher.engine.diagnosis_log import Hit, alive_at, around, got_over, hits, last_run, line_of, trial
from launcher.engine.process import Exit

_MIB = 2**20
_FACT_LENGTH = 200
_NEAR, _FAR = 3_000, 200_000
"""Characters of the log in which a fault's context is looked for: behind it, and before it."""
_NARROWING = 4_000
_LAST_CHARACTERS = 200_000
_RANKS: tuple[Severity, ...] = ("degraded", "request", "notice")
_SYMPTOM = re.compile(
    r"exiting due to|failed to load model|failed to create.context|encountered an error while trying to fit"
    r"|error loading model: *$|Failed to init server|failed to measure the memory"
)
_PART = re.compile(r"\[([^\[\]]*)\]|\{(\w+)\}")
_PLACE = re.compile(r"\{(\w+)\}")
_COUNTS = frozenset({"mib", "needed_mib", "free_mib", "tokens", "context"})
_CRASHED = "crashed"
_FAILING_END = ("exiting due to", "Failed to init server")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, why, and what can be done about it; the first action is the one to offer.

    `error` is the code of the error that it is raised as, `facts` what was found in the log, `line` the line that names
    the cause (empty when the exit code did), `number` the entry of the list of signatures.
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

    @property
    def action(self) -> Action:
        """The action to offer."""
        return self.actions[0]

    def as_error(self, exit_code: int | None = None) -> LauncherError:
        """Return it as the error that a user meets."""
        kind = error_types()[self.error]
        error = kind(f"{self.title} {self.cause}", self.hint, diagnosis=self.code, line=self.line, exit_code=exit_code)
        error.propose(self.actions)
        return error


def explain(ended: Exit, lines: Iterable[str], *, while_doing: str, hint: str = "See its log.") -> LauncherError:
    """Return the first cause that the log names, else what can be said of the exit.

    `while_doing` completes "The engine ... while ", such as "loading the model"; `hint` is what to do when the
    log names no cause. What only hindered the engine does not explain its end.
    """
    text = "\n".join(lines)
    found = diagnose(text, exit_code=ended.code)
    crashed = found is not None and found.code == _CRASHED
    if found is not None and not crashed and (found.severity == "fatal" or found.facts.get("led_to")):
        return found.as_error(ended.code)
    last = last_error(text)
    said = part(f"The last it said: {last}") if last else ""
    title = " ".join(filter(None, (f"The engine {ended} while {while_doing}.", said)))
    error = EngineFailed(title, hint, exit_code=ended.code)
    if found is not None and crashed:  # what it was about to do says more than the signal
        error.facts = {**error.facts, "diagnosis": found.code, "line": found.line}
        error.propose(found.actions)
    return error


def explain_refusal(refused: LauncherError, lines: Iterable[str]) -> LauncherError:
    """Return why an engine that runs on refused its first request if its log names that, else `refused`."""
    found = diagnose("\n".join(lines))
    return found.as_error() if found is not None and found.severity == "request" else refused


def diagnose(text: str, *, exit_code: int | None = None) -> Diagnosis | None:
    """Return the first cause of what went wrong in the last run that a log tells of; None when it names none.

    `exit_code` is how the engine ended, negative for a signal, None when that is not known.
    """
    run = last_run(text)
    named = [hit for hit in hits(run) if _has_evidence(hit.fault, run)]
    if exit_code != 0 and (fatal := _first_fatal(named, run)):
        root = next(
            (hit for hit in named if fatal.fault.code in hit.fault.data.explains and hit.offset < fatal.offset), None
        )
        found = _told(root or fatal, named, run)
        return found if root is None else replace(found, facts={**found.facts, "led_to": fatal.fault.code})
    if exit_code:
        by_exit = next((fault for fault in faults() if exit_code in fault.data.exits), None)
        if by_exit is not None:
            return _told(Hit(len(run), by_exit, "", {}), named, run)
    if exit_code or any(mark in run for mark in _FAILING_END):
        return None  # it failed, and not of what only hindered it
    loaded = alive_at(run)
    lesser = [
        hit
        for hit in named
        if hit.fault.data.severity in _RANKS and not (hit.fault.data.until_loaded and hit.offset < loaded)
    ]
    first = min(
        lesser, key=lambda hit: (_RANKS.index(hit.fault.data.severity), hit.offset, hit.fault.order), default=None
    )
    return _told(first, named, run) if first else None


def last_error(text: str) -> str | None:
    """Return the first error of the last run that is no mere symptom, else its last line; None for an empty log."""
    run = last_run(text)
    lines = [line for raw in run[-_LAST_CHARACTERS:].split("\n") if (line := line_of(raw)).text.strip()]
    errors = [line.text for line in lines if line.level == "E" or " E " in line.text or "error" in line.text.lower()]
    first = next((error for error in errors if not _SYMPTOM.search(error)), errors[-1] if errors else None)
    first = first or (lines[-1].text if lines else None)
    return _shown(first) if first else None


def _first_fatal(named: list[Hit], run: str) -> Hit | None:
    loaded = alive_at(run)
    fatal = [
        hit
        for hit in named
        if hit.fault.data.severity == "fatal" and hit.offset > loaded and not got_over(run, hit.offset)
    ]
    tried = trial(run)
    return min(fatal, key=lambda hit: (hit.offset in tried, hit.offset, hit.fault.order), default=None)


def _has_evidence(fault: Fault, run: str) -> bool:
    """Whether the log holds one of the things that must be in it, and nothing that must not."""
    evident = not fault.evidence or any(each.search(run) for each in fault.evidence)
    return evident and not any(each.search(run) for each in fault.absent)


def _told(hit: Hit, named: list[Hit], run: str) -> Diagnosis:
    """Put a hit into words, with what the lines around it add."""
    data = hit.fault.data
    facts = _facts(hit.facts)
    narrower = _narrower(hit, named)
    if narrower is not None and narrower.fault.data.part:
        facts |= {"part": narrower.fault.data.part} | {
            name: value for name, value in _facts(narrower.facts).items() if name not in facts
        }
    if hit.fault.context:
        above, below = around(run, hit.offset, _FAR, _NEAR)
        for regex in hit.fault.context:
            nearest = regex.search(below) or next(reversed(list(regex.finditer(above))), None)
            more = _facts({name: value for name, value in nearest.groupdict().items() if value} if nearest else {})
            facts = more | facts
    actions = (*(narrower.fault.data.actions if narrower else ()), *data.actions)
    return Diagnosis(
        data.code,
        data.number,
        data.severity,
        data.error,
        _filled(data.title, facts),
        _filled(data.cause, facts),
        _filled(narrower.fault.data.hint if narrower else data.hint, facts),
        tuple(_distinct(_action(each, facts) for each in actions)),
        facts,
        _shown(hit.line),
    )


def _narrower(hit: Hit, named: list[Hit]) -> Hit | None:
    """Return what says which part of the engine a lack of memory struck."""
    near = [each for each in named if hit.offset <= each.offset <= hit.offset + _NARROWING]
    by_code = {each.fault.code: each for each in reversed(near)}
    return next((by_code[code] for code in reversed(hit.fault.data.narrowed_by) if code in by_code), None)


def _facts(found: Mapping[str, str]) -> dict[str, str | int]:
    facts: dict[str, str | int] = {}
    for name, value in found.items():
        if name == "bytes":
            facts["mib"] = -(-int(value) // _MIB)
        elif name.endswith("mib"):
            facts[name] = round(float(value))
        elif value.isdecimal() and len(value) < 12:
            facts[name] = int(value)
        elif shown := _shown(value).rstrip(" .:"):
            facts[name] = shown
    return facts


def _shown(text: str) -> str:
    """Return text from a log as it may be shown anywhere: on one line, not long, nothing invisible."""
    clean = "".join(char if char.isprintable() else " " for char in text.strip())
    return clean if len(clean) <= _FACT_LENGTH else clean[: _FACT_LENGTH - 1] + "…"


def _filled(template: str, facts: Mapping[str, str | int]) -> str:
    """Put facts into a sentence; a part in brackets goes when one of its facts is not known."""

    def value(name: str) -> str:
        fact = facts.get(name, "unknown")
        return f"{fact:,}" if isinstance(fact, int) and name in _COUNTS else str(fact)

    def fill(found: re.Match[str]) -> str:
        if found[2]:
            return value(found[2])
        known = all(name in facts for name in _PLACE.findall(found[1]))
        return _PLACE.sub(lambda place: value(place[1]), found[1]) if known else ""

    whole = _PART.sub(fill, template).strip()
    return whole[:1].upper() + whole[1:]


def _action(data: ActionData, facts: Mapping[str, str | int]) -> Action:
    """Return an action with its facts; a value that is not known is left out."""
    values: dict[str, str | int] = {}
    for name, value in data.parameters.items():
        places = _PLACE.findall(str(value))
        if not places:
            values[name] = value
        elif places[0] in facts:
            values[name] = facts[places[0]]
    return Action(data.kind, _filled(data.label, facts), values)


def _distinct(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the first action of each kind."""
    seen: set[ActionKind] = set()
    for action in actions:
        if action.kind not in seen:
            seen.add(action.kind)
            yield action
