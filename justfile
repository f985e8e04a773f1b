# Recipes: `just` lists them. Everything runs in .venv, which ./start and ./test make.
export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

locking := "pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --only-binary :all:"

_default:
    @just --list

# the main job
run *arguments:
    ./start {{arguments}}

# all checks and tests
test *arguments:
    ./test {{arguments}}

# formatters and linters only
lint:
    ruff format .
    ruff check --fix .
    mypy
    mypy --platform win32 -p launcher
    lint-imports

# the lock files anew, from pyproject.toml
lock:
    uv pip compile --group build -o requirements.lock {{locking}}
    uv pip compile --group dev -o requirements-dev.lock -c requirements.lock {{locking}}

# the demo model anew, into resources/demo
demo-model:
    python -m tools.demo_model

# all that is made from declarations anew: tables in docs, the schema, the window's texts, and what commands print
generate: tables schema translations golden

# the tables in docs/settings.md and docs/diagnosis.md anew
tables:
    python -m tools.settings_table
    python -m tools.diagnosis_score --docs

# presets/schema.json anew, from the classes that read the presets
schema:
    python -m tools.export_schema

# the plans of all models on machines of many sizes: writes docs/plans.md
plans:
    python -m tools.plan_table --write

# the catalogue compared with the hub: names files that were replaced, are gone or are new
catalogue *arguments:
    python -m tools.catalogue_check {{arguments}}

# tests/cli/golden anew: what the commands in its transcripts print, and the help of a new one
golden *arguments:
    python -m pytest -q -n 4 tests/cli/test_golden.py --write-golden {{arguments}}

# the window's texts anew, into resources/locale; prints what waits for a translation
translations:
    python -m tools.translations

# a tour in pictures of all pages and states: build/screenshots/index.html; with --docs those of docs/screenshots
screenshots *arguments:
    python -m tools.screenshots {{arguments}}

# speed of the program itself: prints the table of docs/performance.md
bench:
    python -m benchmarks

# how right the memory formula is: prints the tables of docs/accuracy.md
accuracy *arguments:
    python -m tools.accuracy {{arguments}}

# hostile headers for the GGUF reader, for some time: `just fuzz --seconds 600`
fuzz *arguments:
    python -m tools.fuzz_gguf {{arguments}}

# faults of servers and disks met by a download: prints the table of docs/downloads.md
faults *arguments:
    python -m tools.fault_matrix {{arguments}}

# the site of docs/, into build/site; `just site serve` shows it and follows changes
site *arguments:
    .ci/site build {{arguments}}
