"""Compose file for llama.cpp's official container images."""

from dataclasses import dataclass

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.export import quoting
from launcher.export.recipe import ExportRecipe, file_name, parent_folder

_PORT = 8080
"""The port that the image's health check uses (.devops/*.Dockerfile)."""
_KEY_FILE = "llama-api-key"
_KEY_COMMENT = f"# The key lies beside this file: (umask 077; openssl rand -hex 32 >{_KEY_FILE})"
_REPOSITORY = "ghcr.io/ggml-org/llama.cpp"
_MOUNT = "/models"


@dataclass(frozen=True, slots=True)
class _Image:
    """An image (llama.cpp docs/docker.md, .github/workflows/docker.yml) and the host devices it needs."""

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


def compose_file(recipe: ExportRecipe) -> str:
    """Return a compose file: model files mounted read-only, the port on this computer only, the key as a secret.

    Raises BadOption for a backend without an image.
    """
    image = _IMAGES.get(recipe.backend)
    if image is None:
        raise BadOption(
            message("llama.cpp has no container image for {backend}.", backend=recipe.backend),
            message("Choose one of {images}.", images=", ".join(_IMAGES)),
        )
    folders = dict.fromkeys(map(parent_folder, recipe.files))
    mounts = {folder: f"{_MOUNT}-{number}" if number > 1 else _MOUNT for number, folder in enumerate(folders, 1)}
    in_container = recipe.with_paths(
        lambda path: f"{mounts[parent_folder(path)]}/{file_name(path)}",
        host="0.0.0.0",  # noqa: S104 -- inside the container
        port=_PORT,
    )
    secret = () if recipe.api_key else (("--api-key-file", f"/run/secrets/{_KEY_FILE}"),)
    lines = [
        f"# Serves {quoting.clean_comment(recipe.name)} at {recipe.url}: docker compose up --detach --wait",
        "# With docker-compose 1.29, as of Debian 12: docker-compose up --detach",
        *([] if recipe.api_key else [_KEY_COMMENT]),
        "services:",
        "  llama-server:",
        f"    image: {_REPOSITORY}:{image.tag}",
        "    command:",
        *(f"      - {quoting.quote_compose(word)}" for word in in_container.build_arguments(*secret)),
        "    ports:",
        f"      - {quoting.quote_compose(f'{recipe.host}:{recipe.port}:{_PORT}')}",
        "    volumes:",
        *(line for source, target in mounts.items() for line in _bind_mount(source, target)),
        *_environment_lines(recipe),
        *([] if recipe.api_key else ["    secrets:", f"      - {_KEY_FILE}"]),
        *_device_lines(image),
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


def _bind_mount(source: str, target: str) -> list[str]:
    # `bind: create_host_path: false` is left out because docker-compose 1.29 rejects it. Newer versions therefore
    # create a missing folder, in which llama-server finds no model.
    return [
        "      - type: bind",
        f"        source: {quoting.quote_compose('./models' if source == '.' else source)}",
        f"        target: {target}",
        "        read_only: true",
    ]


def _environment_lines(recipe: ExportRecipe) -> list[str]:
    variables = dict(recipe.environment)
    if recipe.api_key:
        variables["LLAMA_API_KEY"] = recipe.api_key
    lines = [f"      {name}: {quoting.quote_compose(value)}" for name, value in variables.items()]
    return ["    environment:", *lines] if lines else []


def _device_lines(image: _Image) -> list[str]:
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
