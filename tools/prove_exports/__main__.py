"""Proves exports by running them: see .ci/exports.

`python -m tools.prove_exports FOLDER [--llama-server PATH]`
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import yaml

from tools.prove_exports.agents import prove_agents
from tools.prove_exports.checks import COMMAND, Proofs, ensure, export, free_port, get, run, serve_model
from tools.prove_exports.gateways import prove_gateways

_BACKENDS = ("cuda", "rocm", "vulkan", "cpu")
MODEL_NAME = "de'mo $HOME é.gguf"


def check_start(command: list[str], port: int, key: str, **environment: str) -> str:
    """Start a server, wait until it is ready, check that it requires the key, and end it."""
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while get(f"http://127.0.0.1:{port}/health")[0] != 200:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(f"it did not become ready: {(process.communicate()[1])[-500:]}")
                time.sleep(0.1)
            without, _ = get(f"http://127.0.0.1:{port}/v1/models")
            status, models = get(f"http://127.0.0.1:{port}/v1/models", key)
            assert (without, status) == (401, 200), (without, status)
            return f"serves {models['data'][0]['id']!r}, without the key 401"
        finally:
            process.kill()
            process.communicate()


def prove_servers(proofs: Proofs, folder: Path, model: Path) -> None:
    """Check the exports that start a server, with a model of an odd name."""
    port, key = free_port(), "k" * 32
    options = ("--model", str(model), "--port", str(port), "--ctx", "1024", "--draft", "2", "--threads", "1")

    def check_command() -> str:
        return check_start(["bash", "-c", "exec 2>&1; " + export("command", "--shell", "bash", *options)], port, key,
                      LLAMA_API_KEY=key)  # fmt: skip

    def check_script() -> str:
        path, key_file = folder / "serve it.sh", folder / "the key"
        path.unlink(missing_ok=True)
        key_file.write_text(f"{key}\n")
        export("script", "--shell", "bash", "--out", str(path), *options)
        return check_start([str(path)], port, key, LLAMA_API_KEY_FILE=str(key_file), LLAMA_ARG_PORT="1")

    def check_unit() -> str:
        path = folder / "llama-server.service"
        path.write_text(export("systemd", *options))
        ensure(run("systemd-analyze", "--user", "verify", path, env={"XDG_RUNTIME_DIR": str(folder)}))
        return run("systemd-analyze", "--version").stdout.splitlines()[0]

    proofs("command: bash runs it, the engine serves a model with an odd name", check_command)
    proofs("script: runs by itself, with the key of a file", check_script)
    if shutil.which("systemd-analyze"):
        proofs("systemd: systemd-analyze verify", check_unit)
    proofs("compose: a YAML parser reads it", lambda: _check_compose(export("compose", *options)))
    proofs(
        "compose: docker-compose 1.29 of Debian 12 reads it",
        lambda: _resolve_with_compose_1(folder, export("compose", *options)),
    )
    proofs(
        "compose: docker compose 2 of Debian 13 reads it",
        lambda: _resolve_with_compose_2(folder, export("compose", *options)),
    )
    proofs("compose: podman-compose reads it", lambda: _resolve_with_podman(folder, export("compose", *options)))
    proofs("llama-swap: a YAML parser reads it", lambda: _check_llama_swap(export("llama-swap", *options)))


def _check_compose(text: str) -> str:

    service = yaml.safe_load(text)["services"]["llama-server"]
    assert service["command"][1] == f"/models/{MODEL_NAME}".replace("$", "$$")
    return str(service["image"])


def _resolve_with_compose_1(folder: Path, text: str) -> str:
    """Let docker-compose 1.29, a Python program, resolve the file, for which it needs no daemon."""
    root = _unpack_package(folder, "bookworm", "docker-compose", dependencies="python3-")
    program = ("/usr/bin/python3", root / "usr/bin/docker-compose")
    return _resolve_compose(folder, text, *program, PYTHONPATH=str(root / "usr/lib/python3/dist-packages"))


def _resolve_with_compose_2(folder: Path, text: str) -> str:
    """Let docker compose 2, a single binary, resolve the file."""
    root = _unpack_package(folder, "trixie", "docker-compose")
    return _resolve_compose(folder, text, root / "usr/libexec/docker/cli-plugins/docker-compose")


def _resolve_compose(folder: Path, text: str, *program: str | Path, **environment: str) -> str:
    """Resolve a compose file for each kind of GPU, and return the program's version."""
    place = folder / "compose-files"
    place.mkdir(exist_ok=True)
    (place / "llama-api-key").write_text("k" * 32)
    texts = {"as here": text} | {kind: export("compose", "--model", "demo", "--backend", kind) for kind in _BACKENDS}
    for kind, each in texts.items():
        (place / "compose.yaml").write_text(each)
        result = ensure(run(*program, "-f", place / "compose.yaml", "config", env=environment, cwd=place))
        service = yaml.safe_load(result.stdout)["services"]["llama-server"]
        if kind == "as here":  # both print a dollar sign doubled, as compose files require it
            assert service["command"][1] == f"/models/{MODEL_NAME}".replace("$", "$$"), service["command"]
    return ensure(run(*program, "version", "--short", env=environment)).stdout.strip()


def _unpack_package(folder: Path, suite: str, package: str, *, dependencies: str = "") -> Path:
    """Unpack a Debian package, and its dependencies whose names begin with `dependencies`. Nothing is installed."""
    base = folder / suite
    root = base / "root"
    if root.exists():
        return root
    for part in ("lists/partial", "cache/archives/partial", "debs"):
        (base / part).mkdir(parents=True, exist_ok=True)
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    # The archive of this computer's own packages has other releases of Debian, too.
    known = ensure(run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")).stdout.split()
    archive = next(each for each in known if "security" not in each)
    (base / "sources.list").write_text(f"deb {signed} {archive} {suite} main\n")
    places = {"Etc::sourcelist": base / "sources.list", "Etc::sourceparts": "-"}
    places |= {"State::lists": base / "lists", "Cache": base / "cache"}
    options = [word for name, place in places.items() for word in ("-o", f"Dir::{name}={place}")]
    ensure(run("apt-get", *options, "update"))
    wanted = {package}
    if dependencies:
        kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        without = [f"--no-{kind}" for kind in kinds]
        output = ensure(run("apt-cache", *options, "depends", "--recurse", *without, package)).stdout
        wanted |= {line for line in output.splitlines() if line.startswith(dependencies)}
    ensure(run("apt-get", *options, "download", *sorted(wanted), cwd=base / "debs"))
    for file in (base / "debs").glob("*.deb"):
        ensure(run("dpkg-deb", "--extract", file, base / "unpacked"))
    return (base / "unpacked").rename(root)


def _resolve_with_podman(folder: Path, text: str) -> str:
    """Let podman-compose resolve the file; it starts no container, so it only needs podman's version."""
    python = folder / "compose-venv" / "bin" / "python"
    if not python.exists():
        ensure(run(sys.executable, "-m", "venv", folder / "compose-venv"))
    ensure(run(python, "-m", "pip", "install", "--quiet", "podman-compose"))
    podman = folder / "compose-bin" / "podman"
    podman.parent.mkdir(exist_ok=True)
    podman.write_text("#!/bin/sh\necho podman version 5.0.0\n")
    podman.chmod(0o755)
    (folder / "compose.yaml").write_text(text)
    path = {"PATH": f"{podman.parent}:{os.environ['PATH']}"}
    result = ensure(run(python.with_name("podman-compose"), "-f", folder / "compose.yaml", "config", env=path))
    service = yaml.safe_load(result.stdout)["services"]["llama-server"]
    assert service["command"][1] == f"/models/{MODEL_NAME}", service["command"]
    return ensure(run(python, "-c", "import podman_compose; print(podman_compose.__version__)")).stdout.strip()


def _check_llama_swap(text: str) -> str:

    (model,) = yaml.safe_load(text)["models"].values()
    assert any(word.endswith(MODEL_NAME) for word in shlex.split(model["cmd"]))
    return ""


def prove_clients(proofs: Proofs, folder: Path) -> None:
    """Check the exports that send requests to a server."""
    with serve_model("--model", "demo") as ready:
        key = {"LLAMA_API_KEY": ready["api_key"]}
        wrong = {"LLAMA_API_KEY": "wrong"}

        def ask_by_curl() -> str:
            text = export("curl")
            output = ensure(run("bash", "-c", text, env=key)).stdout
            assert output.rstrip().endswith("data: [DONE]"), output[-200:]
            refused = ensure(run("bash", "-c", text, env=wrong), 22)
            assert "401" in refused.stderr
            return f"{output.count('data: ')} events; with a wrong key exit 22"

        proofs("curl: a streamed reply, and a wrong key reported", ask_by_curl)
        python = _install_python_client(proofs, folder)
        if python is not None:
            _prove_client(proofs, "python", [str(python)], folder / "ask.py", key, wrong)
        if _install_typescript_client(proofs, folder):
            _prove_client(proofs, "typescript", ["node"], folder / "ask.js", key, wrong)
    for name, program, source in (("python", folder / "venv/bin/python", "ask.py"), ("typescript", "node", "ask.js")):
        result = run(program, folder / source, env=key)
        proofs(f"{name}: tells that the server is gone", partial(_check_unreachable, result))


def _check_unreachable(result: subprocess.CompletedProcess[str]) -> str:
    assert "cannot be reached" in ensure(result, 1).stderr, result.stderr
    return result.stderr.strip()


def _prove_client(
    proofs: Proofs, name: str, command: list[str], program: Path, key: dict[str, str], wrong: dict[str, str]
) -> None:
    def check_reply() -> str:
        output = ensure(run(*command, program, "What is MTP?", env=key)).stdout
        assert len(output.split()) > 5, output
        return f"{len(output.split())} words"

    def check_refusal() -> str:
        result = ensure(run(*command, program, env=wrong), 1)
        assert result.stderr.strip() == "The API key is wrong.", result.stderr
        return result.stderr.strip()

    proofs(f"{name}: a streamed reply", check_reply)
    proofs(f"{name}: tells a wrong key", check_refusal)


def _install_python_client(proofs: Proofs, folder: Path) -> Path | None:
    python = folder / "venv" / "bin" / "python"

    def install() -> str:
        if not python.exists():
            ensure(run(sys.executable, "-m", "venv", folder / "venv"))
        ensure(run(python, "-m", "pip", "install", "--quiet", "openai"))
        (folder / "ask.py").write_text(export("python"))
        ensure(run(python, "-W", "error", "-m", "py_compile", folder / "ask.py"))
        return ensure(run(python, "-c", "import openai; print(openai.__version__)")).stdout.strip()

    proofs("python: the package openai", install)
    return python if python.exists() else None


def _install_typescript_client(proofs: Proofs, folder: Path) -> bool:
    def check() -> str:
        packages = ("openai", "typescript", "@types/node")
        (folder / "package.json").write_text('{"private": true}')
        ensure(run("npm", "install", "--no-fund", "--no-audit", "--silent", *packages, cwd=folder))
        (folder / "ask.ts").write_text(export("typescript"))
        checks = ("--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--noUnusedLocals")
        ensure(run("npx", "tsc", *checks, "ask.ts", cwd=folder))
        return ensure(run("npx", "tsc", "--version", cwd=folder)).stdout.strip()

    proofs("typescript: tsc --strict", check)
    return (folder / "ask.js").exists()


def prove_router(proofs: Proofs, folder: Path, model: Path, program: str) -> None:
    """Check that a real router finds its models through the exported preset."""
    port, key = free_port(), "k" * 32

    def check_router() -> str:
        preset = folder / "preset.ini"
        options = ("--model", str(model), "--port", str(port), "--ctx", "1024", "--draft", "2", "--threads", "1")
        text = export("router-ini", *options)
        preset.write_text(text)
        line = text.splitlines()[0].removeprefix("; llama-server ").replace("FILE", str(preset))
        environment = {"LLAMA_API_KEY": key, "XDG_CONFIG_HOME": "/var/empty"}
        with subprocess.Popen(
            [program, *line.split(" ")],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                deadline = time.monotonic() + 30
                while (found := get(f"http://127.0.0.1:{port}/models", key))[0] != 200:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise AssertionError("the router does not answer")
                    time.sleep(0.2)
                (read,) = found[1]["data"]
            finally:
                process.kill()
        assert read["id"] == MODEL_NAME.removesuffix(".gguf"), read["id"]
        result = read["status"]["args"]
        for flag, value in (("--model", str(model)), ("--ctx-size", "1024"), ("--spec-type", "draft-mtp")):
            assert result[result.index(flag) + 1] == value, result
        return f"{read['id']!r}, its arguments as exported"

    proofs("router-ini: llama-server's router reads it", check_router)


def main() -> int:
    """Run all checks; the last line counts them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-server", help="a real llama-server, for the router's preset")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MTP_LAUNCHER_HOME"] = str(folder / "home")
    result = json.loads(ensure(run(*COMMAND, "export", "command", "--model", "demo", "--json")).stdout)["text"]
    demo = next(word for word in result.split() if word.endswith(".gguf"))
    model = folder / MODEL_NAME
    shutil.copyfile(demo, model)
    proofs = Proofs()
    prove_servers(proofs, folder, model)
    prove_clients(proofs, folder)
    prove_agents(proofs, folder)
    prove_gateways(proofs, folder, model)
    if options.llama_server:
        prove_router(proofs, folder, model, options.llama_server)
    print(f"{proofs.passed} passed, {len(proofs.failed)} failed")
    return 1 if proofs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
