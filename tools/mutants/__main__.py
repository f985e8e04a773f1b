"""Command line: `python -m tools.mutants [PACKAGE ...]`. Exit code 1 when too few faults were noticed.

    python -m tools.mutants --count 150 --seed 7 --out faults.jsonl     draws 150 faults; run again, it goes on

Each fault is put into a copy of the checkout, in which the nearest tests run until one fails: those that load the
changed module, and speak of what the changed function speaks of. A fault that makes a test wait without end is
noticed by the limit of each test. Faults in logs, texts and annotations are not drawn. One that no test can notice
does no harm: a search that begins earlier, a smaller cache.

What was not noticed may be by a test further away: remove its line from the file, and run again with more `--tests`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from tools.mutants.faults import Fault, find_faults
from tools.mutants.nearest import NearestTests

_PACKAGES = ("app", "gateway", "engine", "models", "fetch", "monitor", "tuning", "machine", "base")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a fault: the test that noticed it, or "" if none did; the number of tests that were to run."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    noticed_by: str
    tests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault, and the tests to try it against, nearest first."""

    file: Path
    fault: Fault
    tests: Sequence[str]

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What the fault is found by in a file of verdicts."""
        return self.file.as_posix(), self.fault.line, self.fault.kind, " ".join(self.fault.before.split())[:120]


def draw_trials(root: Path, packages: Sequence[str], count: int, seed: int) -> list[Trial]:
    """Return faults at random places of the packages: for a seed the same ones, also after changes elsewhere."""
    files = [each for package in packages for each in sorted((root / "launcher" / package).rglob("*.py"))]
    pool: dict[str, tuple[Path, Fault]] = {}
    for file in files:
        alike: Counter[str] = Counter()
        for fault in find_faults(file.read_bytes()):
            name = f"{file.relative_to(root).as_posix()} {fault.kind} {fault.before}"
            alike[name] += 1
            pool[sha256(f"{seed} {alike[name]} {name}".encode()).hexdigest()] = file, fault
    print(f"{len(pool):,} places in {len(files)} files", flush=True)
    nearest = NearestTests(root)
    return [
        Trial(file.relative_to(root), fault, nearest.order_tests(file, fault.line))
        for _, (file, fault) in sorted(pool.items())[:count]
    ]


class Copy:
    """A copy of a checkout in which tests run with a fault, apart from those in other copies."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self._temporary = folder / "checkout", folder / "temporary"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (root / name).exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.root / name)

    def try_fault(self, trial: Trial, most: int) -> Verdict:
        """Run the nearest tests, at most so many, with a fault until one fails."""
        began_s, path, tests = time.monotonic(), self.root / trial.file, trial.tests[:most]
        source = path.read_bytes()
        path.write_bytes(trial.fault.put_into(source))
        try:
            noticed_by = self._run_tests(tests) if tests else ""
        finally:
            path.write_bytes(source)
        before, after = (" ".join(text.split())[:120] for text in (trial.fault.before, trial.fault.after))
        return Verdict(
            trial.file.as_posix(),
            trial.fault.line,
            trial.fault.kind,
            before,
            after,
            noticed_by,
            len(tests),
            round(time.monotonic() - began_s, 1),
        )

    def _run_tests(self, names: Sequence[str]) -> str:
        """Return the first test that failed; "" if none did."""
        shutil.rmtree(self._temporary, ignore_errors=True)  # what a faulty program computed and kept
        self._temporary.mkdir()
        own = {name: value for name, value in os.environ.items() if name != "MTP_LAUNCHER_HOME"}
        environment = own | {
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "QT_QPA_PLATFORM": "offscreen",
            "TMPDIR": str(self._temporary),
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *names]
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode in (0, 5):
            return ""
        found = _FAILED.search(done.stdout)
        return found[1] if found else f"exit code {done.returncode}"


def read_verdicts(file: Path) -> dict[tuple[str, int, str, str], Verdict]:
    """Return the verdicts that an earlier run wrote, by what identifies a fault."""
    if not file.exists():
        return {}
    found = [Verdict(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]
    return {(each.file, each.line, each.kind, each.before): each for each in found}


def report_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Return the share of faults that were noticed, by package, and the others one by one."""
    lines = []
    packages = sorted({each.file.split("/")[1] for each in verdicts})
    for package in packages:
        own = [each for each in verdicts if each.file.split("/")[1] == package]
        lines.append(f"{package:<10} {sum(bool(each.noticed_by) for each in own):>3} of {len(own)}")
    lines.append(f"{'all':<10} {sum(bool(each.noticed_by) for each in verdicts):>3} of {len(verdicts)}")
    missed = [each for each in verdicts if not each.noticed_by]
    lines += [f"{each.file}:{each.line} {each.kind}: {each.before} -> {each.after}" for each in missed]
    return "\n".join(lines)


def main() -> int:
    """Try the faults and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("packages", nargs="*", default=list(_PACKAGES), metavar="PACKAGE")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--tests", type=int, default=40, metavar="N", help="to try each fault against")
    parser.add_argument("--least", type=float, default=0.8, metavar="SHARE", help="of the faults, to be noticed")
    parser.add_argument("--out", type=Path, help="file that each verdict is added to; those in it are not tried again")
    options = parser.parse_args()
    root = Path(__file__).parents[2]
    trials = draw_trials(root, options.packages, options.count, options.seed)
    known = read_verdicts(options.out) if options.out else {}
    waiting = iter([each for each in trials if each.key not in known])
    verdicts = [known[each.key] for each in trials if each.key in known]

    def try_all(copy: Copy) -> None:
        for trial in waiting:  # which all copies share
            handle(copy.try_fault(trial, options.tests))

    def handle(verdict: Verdict) -> None:
        verdicts.append(verdict)
        noticed = sum(bool(each.noticed_by) for each in verdicts)
        change = f"{verdict.file}:{verdict.line} {verdict.before} -> {verdict.after}"
        print(f"{noticed}/{len(verdicts)} {change}: {verdict.noticed_by or 'NOT NOTICED'}", flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")

    with tempfile.TemporaryDirectory(prefix="mtp-mutants-") as folder, ThreadPoolExecutor(options.copies) as pool:
        copies = [Copy(root, Path(folder, str(number))) for number in range(options.copies)]
        for done in [pool.submit(try_all, copy) for copy in copies]:
            done.result()
    print(report_verdicts(verdicts))
    return int(sum(bool(each.noticed_by) for each in verdicts) < options.least * len(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
