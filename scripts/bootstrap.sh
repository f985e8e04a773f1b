# Sourced by ./start and ./test: finds what is missing and installs it. POSIX sh.
#
#   install_system_libraries PURPOSE ...   those of resources/system-libraries.txt for the named purposes
#   install_python LOCK                    .venv with what the lock file names, and this checkout

set -eu

say() { printf '%s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Prints the Debian packages that are missing for the purposes given.
missing_packages() {
    libraries=$(/sbin/ldconfig -p 2>/dev/null || true)
    while read -r purpose soname package _; do
        case " $* " in *" $purpose "*) ;; *) continue ;; esac
        case "$libraries" in *"	$soname "*) ;; *) printf '%s ' "$package" ;; esac
    done <resources/system-libraries.txt
    if ! python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        printf 'python3 python3-venv '
    fi
    for purpose in "$@"; do
        [ "$purpose" = test ] || continue
        command -v xvfb-run >/dev/null || printf 'xvfb xauth '
        command -v curl >/dev/null || printf 'curl ' # it is shown in exports, and must work
        command -v bats >/dev/null || printf 'bats ' # these four look at what installs the program
        command -v shellcheck >/dev/null || printf 'shellcheck '
        command -v desktop-file-validate >/dev/null || printf 'desktop-file-utils '
        command -v appstreamcli >/dev/null || printf 'appstream '
        command -v dbus-daemon >/dev/null || printf 'dbus-daemon ' # the window asks a real bus for motion
        command -v git >/dev/null || printf 'git '
        command -v unzip >/dev/null || printf 'unzip '
        command -v minisign >/dev/null || printf 'minisign ' # it signs releases
        command -v cc >/dev/null || printf 'gcc libc6-dev ' # a stand-in for NVIDIA's library is compiled
    done
}

install_system_libraries() {
    packages=$(missing_packages "$@")
    [ -n "$packages" ] || return 0
    line="apt-get install -y --no-install-recommends $packages"
    if ! command -v apt-get >/dev/null; then
        say "These Debian packages, or what this system calls them, are missing: $packages"
        say "Install them and run this again."
        exit 1
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        say "These packages are missing, and there is no sudo. Ask somebody with root to run:"
        say "  apt-get update && $line"
        exit 1
    fi
    say "Installing $packages"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive $line -qq >/dev/null
}

pip_install() {
    env -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}

# Prints the path of uv: the one on PATH, or the one that install.sh takes, by its hash.
get_uv() {
    command -v uv && return
    if [ ! -x .venv/bin/uv ]; then
        release=$(sed -n 's/^uv_version=//p' installer/linux/install.sh)
        hash=$(sed -n 's/^uv_sha256=//p' installer/linux/install.sh)
        printf 'uv==%s --hash=sha256:%s\n' "$release" "$hash" >.venv/uv.lock
        pip_install --retries 1 --require-hashes --only-binary :all: -r .venv/uv.lock 2>/dev/null || return
    fi
    printf '%s\n' "$PWD/.venv/bin/uv"
}

# Prints pip's own setting NAME, of its variables before its files; from $configured.
pip_setting() { printf '%s\n' "$configured" | sed -n "s/^[a-z:]*\\.$1='\\(.*\\)'\$/\\1/p" | head -n 1; }

# uv_install ARGUMENT ...: installs by uv, a tenth of pip's time, from where pip would take it
uv_install() {
    configured=$(.venv/bin/python -m pip config list 2>/dev/null) || return
    index=$(pip_setting index-url) certificates=$(pip_setting cert)
    # All is pinned by hash, so the best match of several indexes is as safe as the first one's.
    env -u UV_TARGET -u UV_PREFIX -u UV_SYSTEM_PYTHON UV_NO_CONFIG=1 UV_INDEX_STRATEGY=unsafe-best-match \
        ${index:+"UV_DEFAULT_INDEX=$index"} ${certificates:+"SSL_CERT_FILE=$certificates"} \
        UV_INDEX="$(pip_setting extra-index-url) ${UV_INDEX:-}" UV_FIND_LINKS="$(pip_setting find-links)" \
        "$uv" pip install --quiet --python .venv/bin/python "$@"
}

# install_with INSTALL LOCK: what the lock file names, and this checkout
install_with() {
    "$1" --require-hashes --only-binary :all: -r "$2" && "$1" --no-deps --no-build-isolation --editable .
}

install_python() {
    wanted=$({ cat "$1" pyproject.toml hatch_build.py scripts/bootstrap.sh resources/locale/*/LC_MESSAGES/*.po; pwd; } | cksum)
    [ "$(cat ".venv/$1.installed" 2>/dev/null)" != "$wanted" ] || return 0
    say "Installing Python packages into .venv (about 120 MB the first time)"
    if [ "$(cat .venv/folder 2>/dev/null)" != "$PWD" ]; then # a virtual environment cannot be moved
        python3 -m venv --clear .venv
        printf '%s' "$PWD" >.venv/folder
    fi
    if ! { uv=$(get_uv) && install_with uv_install "$1"; }; then
        say "Without uv: pip installs them, which takes some minutes"
        install_with pip_install "$1" || {
            say "The Python packages could not be installed: see above. Is the package index within reach of this computer?"
            exit 1
        }
    fi
    printf '%s' "$wanted" >".venv/$1.installed"
}
