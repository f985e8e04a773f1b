"""A compose file for the official container images of llama.cpp."""

from dataclasses import dataclass

from launcher.base.errors import BadOption
from launcher.export import quoting
from launcher.export.recipe import Recipe, file_name, folder

_PORT = 8080
"""Where the image's own health check looks for the server (.devops/*.Dockerfile)."""
_KEY_FILE = "llama-api-key"
_REPOSITORY = "ghcr.io/ggml-org/llama.cpp"
_MOUNT = "/models"


@dataclass(frozen=True, slots=True)
class _Image:
    """One of the images (llama.cpp docs/docker.md, .github/workflows/docker.yml) and what it needs of the host."""

    tag: str
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    nvidia: bool = False


_IMAGES = {
    "cuda": _Image("server-cuda", nvidia=True),
    "rocm": _Image("server-rocm", ("/dev/kfd", "/dev/dri"), ("video", "render")),
    "vulkan": _Image("server-vulkan", ("/dev/dri",), ("video", "render")),
    "cpu": _Image("server"),
}


def compose(recipe: Recipe) -> str:
    """Return a compose file: the files of the model read-only, the port on this computer only, the key as a secret.

    Raises BadOption for a backend that no image has.
    """
    image = _IMAGES.get(recipe.backend)
    if image is None:
        raise BadOption(
            f"llama.cpp has no container image for {recipe.backend}.", f"Choose one of {', '.join(_IMAGES)}."
        )
    folders = dict.fromkeys(map(folder, recipe.files))
    mounts = dict(zip(folders, (_MOUNT, *(f"{_MOUNT}-{number}" for number in range(2, 99))), strict=False))
    inside = recipe.moved(
        lambda path: f"{mounts[folder(path)]}/{file_name(path)}",
        host="0.0.0.0",  # noqa: S104 -- inside the container
        port=_PORT,
    )
    secret = () if recipe.api_key else (("--api-key-file", f"/run/secrets/{_KEY_FILE}"),)
    lines = [
        f"# Serves {quoting.comment(recipe.name)} at {recipe.url}: docker compose up --detach --wait",
        *([] if recipe.api_key else _about_key()),
        "services:",
        "  llama-server:",
        f"    image: {_REPOSITORY}:{image.tag}",
        "    command:",
        *(f"      - {quoting.compose(word)}" for word in inside.arguments(*secret)),
        "    ports:",
        f'      - "{recipe.host}:{recipe.port}:{_PORT}"',
        "    volumes:",
        *(line for source, target in mounts.items() for line in _bind(source, target)),
        *_variables(recipe),
        *([] if recipe.api_key else ["    secrets:", f"      - {_KEY_FILE}"]),
        *_hardware(image),
        "    healthcheck:",
        f'      test: ["CMD", "curl", "--fail", "--silent", "http://localhost:{_PORT}/health"]',
        "      interval: 10s",
        "      timeout: 5s",
        "      retries: 3",
        "      start_period: 10m",
        "    security_opt:",
        "      - no-new-privileges:true",
        "    restart: unless-stopped",
        "    stop_grace_period: 15s",
        *([] if recipe.api_key else ["", "secrets:", f"  {_KEY_FILE}:", f"    file: ./{_KEY_FILE}"]),
    ]
    return "\n".join(lines) + "\n"


def _about_key() -> list[str]:
    return [f"# The key lies beside this file: (umask 077; openssl rand -hex 32 >{_KEY_FILE})"]


def _bind(source: str, target: str) -> list[str]:
    return [
        "      - type: bind",
        f"        source: {quoting.compose('./models' if source == '.' else source)}",
        f"        target: {target}",
        "        read_only: true",
        "        bind:",
        "          create_host_path: false",
    ]


def _variables(recipe: Recipe) -> list[str]:
    variables = dict(recipe.environment)
    if recipe.api_key:
        variables["LLAMA_API_KEY"] = recipe.api_key
    told = [f"      {name}: {quoting.compose(value)}" for name, value in variables.items()]
    return ["    environment:", *told] if told else []


def _hardware(image: _Image) -> list[str]:
    if image.nvidia:
        return [
            "    deploy:",
            "      resources:",
            "        reservations:",
            "          devices:",
            "            - driver: nvidia",
            "              count: all",
            "              capabilities: [gpu]",
        ]
    lines = ["    devices:", *(f"      - {device}:{device}" for device in image.devices)] if image.devices else []
    return lines + (["    group_add:", *(f"      - {group}" for group in image.groups)] if image.groups else [])
