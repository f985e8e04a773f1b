#!/bin/sh
# Installs MTP Launcher for one user, without root, on any Linux with glibc 2.34 or later; POSIX sh.
# A version is made ready beside the one in use and put in its place in one step, so an attempt that fails changes
# nothing. All that is fetched is checked by SHA-256, and the release by its maintainer's signature (docs/updates.md).
set -eu

# Written by installer/linux/build-install.
version=
wheel=
wheel_sha256=
lock_sha256=
releases=
release_key=
default_index=

lock=mtp_launcher-${version:-X}-requirements.txt
uv_version=0.13.9
uv_wheel=uv-$uv_version-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl
uv_sha256=d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19
pythons='>=3.11,<3.15'
room_mib=900 # 500 stay

usage() {
    cat <<END
sh install.sh                  installs this release, or brings an older one up to it
sh install.sh --offline DIR    the same from a folder of files, without a network
sh install.sh --uninstall      removes the program; models, settings and history stay

The program comes to ~/.local/lib/mtp-launcher, the command to ~/.local/bin, the menu entry and icon to ~/.local/share.

Variables: MTP_LAUNCHER_RELEASES, the https address of the release, where it is not the folder that install.sh lies in;
MTP_LAUNCHER_RELEASE_KEY, the public key of whoever signed a release of your own; UV_DEFAULT_INDEX, UV_INDEX_URL or
PIP_INDEX_URL, the package index; HTTPS_PROXY, ALL_PROXY and NO_PROXY as always.

DIR holds install.sh, manifest.json, manifest.json.minisig, mtp_launcher-*.whl and mtp_launcher-*-requirements.txt of
one release, and the wheels of uv and of all that is required. This fills it in the release's folder, on Linux with a
network and the same Python:
    python3 -m pip download --no-deps --only-binary :all: -d DIR uv==$uv_version
    python3 -m pip download --no-deps --only-binary :all: -d DIR -r $lock
    cp install.sh manifest.json* mtp_launcher-* DIR
END
}

say() { printf '%s\n' "$*"; }

# fail WHAT REMEDY
fail() {
    trap clean EXIT
    printf 'Error: %s\n' "$1" >&2
    printf '       %s\n' "$2" >&2
    exit 1
}

# Runs at every end. Returns the exit status with which the script ends.
clean() {
    status=$?
    if [ -n "$begun" ]; then
        rm -rf "$work"
        [ -f "$fresh/complete" ] || rm -rf "$fresh"
    fi
    return $status
}

# Ends a step that failed after something was begun: stopped WHAT [REMEDY]
stopped() { fail "$1" "${2:-See above.} What was installed before is as it was; run this again to go on."; }

check_system() {
    [ "$(uname -s)" = Linux ] || fail "This installs on Linux; this is $(uname -s)." "For Windows there is a setup.exe."
    [ "$(uname -m)" = x86_64 ] ||
        fail "There are builds for x86_64 processors only; this is $(uname -m)." "Start it from a checkout: ./start"
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1 || true)
    case $libc in
    *musl*)
        fail "This system's C library is musl; Qt's and the engine's builds need glibc." \
            "Debian, Ubuntu, Fedora, Arch and many others have it." ;;
    *[0-9].[0-9]*) ;;
    *) fail "The version of glibc is unknown: neither getconf nor ldd is installed." "Install getconf (in most systems a part of glibc)." ;;
    esac
    libc=${libc##* }
    if [ "${libc%%.*}" -lt 2 ] || { [ "${libc%%.*}" = 2 ] && minor=${libc#*.} && [ "${minor%%.*}" -lt 34 ]; }; then
        fail "glibc here is $libc; Qt's builds need 2.34 or later." \
            "That is Debian 12, Ubuntu 22.04, Fedora 35, RHEL 9 or later: a newer system is needed."
    fi
    command -v sha256sum >/dev/null || fail "There is no sha256sum." "Install coreutils."
}

check_home() {
    if [ "$(id -u)" = 0 ] && [ "$(stat -c %u "$HOME" 2>/dev/null || echo 0)" != 0 ]; then
        fail "This is root, but $HOME belongs to another user." "Run it as that user, without sudo."
    fi
    for folder in "$program" "$commands" "$share"; do
        mkdir -p "$folder" 2>/dev/null || true
        if [ ! -d "$folder" ] || [ ! -w "$folder" ]; then
            fail "The folder $folder cannot be written." "Is your home read-only, or does it belong to another user?"
        fi
    done
    if { [ -e "$command" ] || [ -L "$command" ]; } && ! is_ours "$command"; then
        fail "$command is there already, and is not from this installer." "Move it away, and run this again."
    fi
}

is_ours() { case $(readlink "$1") in "$program"/*) ;; *) return 1 ;; esac }

check_room() {
    free=$({
        df -Pk "$program" | awk 'NR == 2 { print $4 }'
        du -sk "$fresh" "$work" "$program/cache" 2>/dev/null || true # what an attempt left is used again, or goes
    } | awk '{ kib += $1 } END { print int(kib / 1024) }')
    [ "$free" -ge "$room_mib" ] ||
        fail "$program needs $room_mib MiB for the installation, and has $free MiB." "Make room, and run this again."
}

# True if a process runs from a version's folder.
in_use() { grep -qsF -- "$1/" /proc/[0-9]*/cmdline; }

# The same, after waiting up to 5 s for the process to end, as the server does after mtp-launcher stop.
stays_in_use() {
    for _ in 1 2 3 4 5; do
        in_use "$1" || return 1
        sleep 1
    done
    in_use "$1"
}

# Two installations at once would disturb each other. flock exits with 1 if another one holds the lock, and with another
# code if the file system has no locks; then this one goes on without.
alone() {
    if command -v flock >/dev/null; then
        exec 9>"$program/lock"
        flock -n 9 || [ $? -ne 1 ] || fail "Another installation is under way." "Wait for its end."
    fi
}

# include verify.sh

# True if nobody in between can change what is downloaded from an address: https, or http from this computer.
is_private() {
    case $1 in
    https://?*) return 0 ;;
    http://*) ;;
    *) return 1 ;;
    esac
    host=${1#http://} host=${host%%/*}
    case $host in
    '[::1]' | '[::1]:'*) host=127.0.0.1${host#'[::1]'} ;;
    esac
    case $host in
    *[!0-9.:]*) return 1 ;; # such as 127.0.0.1@elsewhere
    127.*) ;;
    *) return 1 ;;
    esac
}

# fetch URL FILE: returns 60, as curl does, if the server's certificate is not trusted
fetch() {
    if command -v curl >/dev/null; then
        protocols=http,https
        case $1 in (https:*) protocols=https ;; esac # also where the server sends it on
        curl --proto "=$protocols" --fail --location --silent --show-error --retry 2 --connect-timeout 30 --output "$2" "$1"
    else # wget does not know the variables in capitals
        https_proxy=${https_proxy:-${HTTPS_PROXY:-${ALL_PROXY:-}}} no_proxy=${no_proxy:-${NO_PROXY:-}} \
            wget -q -T 30 -O "$2" "$1" || case $? in (5) return 60 ;; (*) return 1 ;; esac
    fi
}

# not_fetched WHAT STATUS: stops after fetch
not_fetched() {
    [ "$2" != 60 ] || stopped "$1 The server's certificate is not one that this computer trusts." \
        "Install ca-certificates. A proxy's own: ask who runs it, and name them by SSL_CERT_FILE."
    stopped "$1" "Is there a network? A proxy is named by HTTPS_PROXY."
}

# bring NAME FOLDER [URL]: leaves $work/NAME, from a folder where one is named
bring() {
    if [ -n "$2" ]; then
        [ -f "$2/$1" ] || stopped "$2 holds no $1." "It belongs to this release ($version); --help says what to do."
        cp "$2/$1" "$work/$1" || stopped "$1 could not be copied."
    else
        fetch "$3" "$work/$1" || not_fetched "$1 could not be fetched." $?
    fi
}

# get NAME SHA256 FOLDER [URL]: the same, and checked
get() {
    bring "$1" "$3" "${4:-}"
    matches "$work/$1" "$2" || stopped "$1 is not the file of this release: its SHA-256 differs." \
        "Was the download cut short, or changed on its way?"
}

# Prints the address of uv's wheel, as the package index tells it.
uv_address() {
    page=$index/uv/
    fetch "$page" "$work/uv.html" || return
    address=$(sed -n "s/.*[\"']\([^\"']*$uv_wheel\)[\"'#].*/\1/p" "$work/uv.html" | head -n 1)
    case $address in
    http://* | https://*) say "$address" ;;
    /*) say "$(printf %s "$page" | sed 's|^\([a-z]*://[^/]*\).*|\1|')$address" ;;
    ?*) say "$page$address" ;;
    *) return 1 ;;
    esac
}

# unpack WHEEL: leaves uv in $work
unpack() {
    member=uv-$uv_version.data/scripts/uv
    if command -v unzip >/dev/null; then
        unzip -qoj "$1" "$member" -d "$work"
    elif python3 -I -c 'import zipfile, zlib' 2>/dev/null; then # which python3-minimal lacks
        python3 -I -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' \
            "$1" "$member" >"$work/uv"
    elif command -v bsdtar >/dev/null; then
        bsdtar -xOf "$1" "$member" >"$work/uv"
    elif command -v busybox >/dev/null; then
        busybox unzip -p "$1" "$member" >"$work/uv"
    else
        stopped "There is nothing to unpack a zip file with." "Install unzip, or the package python3."
    fi && chmod 755 "$work/uv"
}

find_python() {
    none="There is no Python from 3.11 to 3.14 here"
    if python=$("$uv" python find --no-project --system --no-python-downloads "$pythons" 2>/dev/null); then
        "$python" -I -c 'import asyncio, ctypes, lzma, sqlite3, ssl' 2>/dev/null && return 0
        none="$python lacks modules of Python's own"
    fi
    if [ -n "$offline" ]; then stopped "$none." "Install one: the package is called python3."; fi
    say "$none; fetching one for this program alone"
    if ! "$uv" python install --no-bin --quiet 3.13 ||
        ! python=$("$uv" python find --no-project --managed-python 3.13); then
        stopped "$none, and none could be fetched." "Install one: the package is called python3."
    fi
}

# Stops unless the manifest has the maintainer's signature. If no program here can verify it, it is verified
# later, with Python packages that this script downloads and checks by their hashes.
verify_manifest() {
    verdict=0
    verify_signature "$work/manifest.json" "$release_key" "$work" || verdict=$?
    case $verdict in
    0) compare_manifest ;;
    1) not_signed ;;
    *) signature_open=yes ;;
    esac
}

verify_with_packages() {
    cat >"$work/verify_signature.py" <<'END'
# include ../verify_signature.py
END
    "$python" -I "$work/verify_signature.py" "$work/checked" "$release_key" "$work/manifest.json" || not_signed
    compare_manifest
}

not_signed() {
    stopped "manifest.json is not signed by this program's maintainer, so nothing of this release is used." \
        "Download all files of the release again. If this persists, report it to the project."
}

# Stops unless the signed manifest is of what this script installs.
compare_manifest() {
    published=$(manifest_version "$work/manifest.json")
    [ "$published" = "$version" ] ||
        stopped "${from:-$releases} holds version ${published:-of no number}, and this install.sh is of $version." \
            "Take the install.sh from there."
    sums="$(manifest_sum "$work/manifest.json" "$wheel") $(manifest_sum "$work/manifest.json" "$lock")"
    [ "$sums" = "$wheel_sha256 $lock_sha256" ] ||
        stopped "The signed release has other files than this install.sh expects." \
            "Download all files of the release again."
    find_installer "$work/manifest.json"
}

# find_installer MANIFEST: leaves the install.sh of the release in $work, unless it is kept already
find_installer() {
    signed=$(manifest_sum "$1" install.sh)
    if matches "$0" "$signed"; then # else it came through a pipe, and $0 is the shell
        cp "$0" "$work/install.sh"
    elif ! matches "$program/install.sh" "$signed"; then
        bring install.sh "$from" "$releases/install.sh"
        matches "$work/install.sh" "$signed" ||
            stopped "${from:-$releases}/install.sh is not the one of the release that was signed." \
                "Was it changed? Download all files of the release again."
    fi
}

install_packages() {
    # uv tool install checks no hashes. So everything is first downloaded into the cache and checked by hash, then
    # installed from there without a network.
    "$uv" pip install --quiet --python "$python" --target "$work/checked" --require-hashes --only-binary :all: \
        "$@" -r "$work/$lock" || stopped "The packages could not be fetched."
    [ -z "$signature_open" ] || verify_with_packages
    rm -rf "$work/checked"
    "$uv" tool install --quiet --python "$python" --offline --no-build --constraints "$work/$lock" "$@" \
        "$work/$wheel" || stopped "The packages could not be installed."
}

# The path as a desktop entry's Exec key takes it (Desktop Entry Specification: quoting, then escaping).
for_exec() { printf '"%s"' "$(printf %s "$1" | sed 's/[\\"`$]/\\&/g; s/\\/\\\\/g; s/%/%%/g')"; }

entries() {
    desktop=$(echo "$fresh"/tools/mtp-launcher/lib/python3*/site-packages/launcher/_data/resources/desktop)
    mkdir -p "$share/applications" "$share/metainfo" "$share/icons/hicolor/scalable/apps"
    run=$(for_exec "$command") awk '
        /^Exec=mtp-launcher/ { $0 = "Exec=" ENVIRON["run"] substr($0, length("Exec=mtp-launcher") + 1) }
        /^TryExec=/ { next }
        { print }' "$desktop/mtp-launcher.desktop" >"$work/mtp-launcher.desktop"
    mv "$work/mtp-launcher.desktop" "$share/applications/"
    cp "$desktop"/*.metainfo.xml "$share/metainfo/"
    mkdir -p "$share/mime/packages"
    cp "$desktop/mtp-launcher.mime.xml" "$share/mime/packages/mtp-launcher.xml"
    cp "$desktop/mtp-launcher.svg" "$share/icons/hicolor/scalable/apps/"
    for picture in "$desktop"/mtp-launcher-*.png; do
        size=${picture##*-} size=${size%.png}
        mkdir -p "$share/icons/hicolor/${size}x$size/apps"
        cp "$picture" "$share/icons/hicolor/${size}x$size/apps/mtp-launcher.png"
    done
    write_completion bash "$share/bash-completion/completions" mtp-launcher
    write_completion zsh "$share/zsh/site-functions" _mtp-launcher
    write_completion fish "$share/fish/vendor_completions.d" mtp-launcher.fish
    write_completion manual "$share/man/man1" mtp-launcher.1
    refresh
}

# write_completion KIND FOLDER NAME: a shell's completion script, or the manual page
write_completion() {
    mkdir -p "$2"
    if MTP_LAUNCHER_HOME="$work/state" "$fresh/bin/mtp-launcher" completion "$1" >"$work/$3"; then
        mv -f "$work/$3" "$2/$3"
    fi
}

refresh() {
    if command -v update-desktop-database >/dev/null; then
        update-desktop-database -q "$share/applications" 2>/dev/null || true
    fi
    if [ -d "$share/mime/packages" ] && command -v update-mime-database >/dev/null; then
        update-mime-database "$share/mime" 2>/dev/null || true
    fi
    touch -c "$share/icons/hicolor" 2>/dev/null || true # desktops look for new icons when it changes
}

install() {
    [ -n "$version" ] || fail "This copy of install.sh lies in a checkout, and belongs to no release." \
        "Start the program from the checkout, by ./start, or take install.sh from a release."
    [ -n "$release_key" ] || fail "This build has no key to verify releases with." \
        "Take install.sh from a release, or set MTP_LAUNCHER_RELEASE_KEY to a public key."
    [ -z "$releases" ] || is_private "$releases" || fail "$releases is not an address that a release may come from." \
        "Use one that begins with https://."
    fresh=$program/$version-$(printf %s "$wheel_sha256$lock_sha256" | sha256sum | cut -c 1-8)
    check_system
    check_home
    alone
    check_order
    find_release
    begun=yes
    trap 'clean || fail "The installation stopped." "See above, and run this again to go on."' EXIT
    trap 'trap clean EXIT; exit 130' INT TERM HUP
    if [ -f "$fresh/complete" ] && "$fresh/bin/mtp-launcher" --version >/dev/null 2>&1; then
        say "This version is installed already, so only its command and menu entry are renewed."
        rm -rf "$work"
        mkdir "$work"
        find_installer "$fresh/manifest.json"
    else
        check_room
        make_ready
    fi
    # For --uninstall; and its presence tells `mtp-launcher update` that install.sh installed the program.
    [ ! -f "$work/install.sh" ] || mv -f "$work/install.sh" "$program/install.sh"
    entries
    ln -sfn "$fresh/bin/mtp-launcher" "$work/command"
    mv -f "$work/command" "$command"
    autostart
    rm -rf "$work" "$program/cache"
    for old in "$program"/[0-9]*; do
        if [ "$old" != "$fresh" ] && ! in_use "$old"; then rm -rf "$old"; fi
    done
    say "MTP Launcher $version is installed. It is in the menu, and as: $command"
    hints
}

# An old release is signed, too: an attacker who hides newer ones from a user could offer it again.
check_order() {
    for other in "$program"/[0-9]*/complete; do
        [ -f "$other" ] || continue
        other=${other%/complete} other=${other##*/} other=${other%-*}
        if is_older "$version" "$other"; then
            fail "MTP Launcher $other is installed, and this is $version, which is older." \
                "To go back: sh $program/install.sh --uninstall (models, settings and history stay), then run this again."
        fi
    done
}

# Leaves the folder that the files of the release are taken from in $from, empty where they come from $releases.
find_release() {
    from=$offline
    if [ -z "$offline" ] && [ -z "${MTP_LAUNCHER_RELEASES:-}" ]; then
        here=$(cd "$(dirname "$0")" && pwd)
        if [ -f "$here/manifest.json" ] && [ -f "$here/$wheel" ] && [ -f "$here/$lock" ]; then from=$here; fi
    fi
}

make_ready() {
    if stays_in_use "$fresh"; then
        fail "MTP Launcher $version is damaged, and still runs." "Close it, and run this again."
    fi
    if [ -z "$offline" ]; then
        command -v curl >/dev/null || command -v wget >/dev/null ||
            fail "There is neither curl nor wget." "Install one of them."
        [ -n "$from$releases" ] || fail "This build does not say where its releases are." \
            "Start it beside $wheel and $lock, set MTP_LAUNCHER_RELEASES to their address, or see --help for --offline."
    fi
    rm -rf "$work"
    mkdir -p "$work"
    say "Installing MTP Launcher $version from ${offline:-the network (about 160 MB)}"
    for name in manifest.json manifest.json.minisig; do bring "$name" "$from" "$releases/$name"; done
    verify_manifest
    rm -rf "$fresh"
    mkdir -p "$fresh"
    get "$wheel" "$wheel_sha256" "$from" "$releases/$wheel"
    get "$lock" "$lock_sha256" "$from" "$releases/$lock"
    address=''
    if [ -z "$offline" ]; then
        address=$(uv_address) || not_fetched "$index does not tell where uv $uv_version is." $?
    fi
    get "$uv_wheel" "$uv_sha256" "$offline" "$address"
    unpack "$work/$uv_wheel" || stopped "uv could not be unpacked."
    uv=$work/uv
    "$uv" --version >/dev/null || stopped "uv, which installs the program, does not start here." \
        "Is $program on a disk that is mounted noexec?"
    export UV_CACHE_DIR="$program/cache" UV_TOOL_DIR="$fresh/tools" UV_TOOL_BIN_DIR="$fresh/bin" UV_NO_PROGRESS=1
    export UV_PYTHON_INSTALL_DIR="$program/python" UV_NO_CONFIG=1 # nor what the user's uv.toml says
    unset VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME UV_PYTHON UV_TARGET UV_LINK_MODE UV_NO_CACHE UV_EXCLUDE_NEWER \
        UV_CONFIG_FILE UV_CONSTRAINT UV_OVERRIDE UV_NO_BINARY UV_WORKING_DIRECTORY UV_PROJECT 2>/dev/null || true
    if [ -z "$offline" ]; then # as curl does; without a network they may be missing
        export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
    fi
    find_python
    if [ -n "$offline" ]; then
        install_packages --no-index --find-links "$offline"
    else
        export UV_DEFAULT_INDEX="$index"
        install_packages
    fi
    reported=$("$fresh/bin/mtp-launcher" --version) || stopped "What was installed does not start."
    [ "$reported" = "mtp-launcher $version" ] || stopped "What was installed calls itself $reported."
    cp "$work/manifest.json" "$fresh/manifest.json"
    : >"$fresh/complete"
}

# Prints the files that start the server at login, where they mean this installation (launcher/app/autostart.py).
autostarts() {
    grep -lsF "$program/" "$configuration/systemd/user/mtp-launcher.service" \
        "$configuration/autostart/mtp-launcher.desktop" || true
}

# Escapes a text for both sides of sed's s command.
literally() { printf %s "$1" | sed 's/[][\\.*^$&|]/\\&/g'; }

# The autostart files name the folder of the version that wrote them: put the new one there.
autostart() {
    before="$(literally "$program")/[^/]*/tools/" now="$(literally "$fresh")/tools/"
    autostarts | while IFS= read -r file; do
        sed "s|$before|$now|g" "$file" >"$work/autostart"
        cp "$work/autostart" "$file"
    done
}

# Prints what the user must do, because it needs root or another login.
hints() {
    case :$PATH: in
    *":$commands:"*) ;;
    *) say "Your PATH does not name $commands. Until it does (log in again, or add it), type the whole path." ;;
    esac
    "$fresh/tools/mtp-launcher/bin/python" -I -c '
from launcher.machine.libraries import missing_libraries_report
print(missing_libraries_report(), end="")' 2>/dev/null || true
    case $(cat /proc/sys/kernel/osrelease 2>/dev/null) in
    *[Mm]icrosoft* | *WSL*)
        say "In WSL, the Windows Start menu shows only what is installed for all users, as the .deb is." ;;
    esac
}

uninstall() {
    closing="MTP Launcher is removed."
    [ -e "$program" ] || is_ours "$command" || closing="Nothing was installed here by install.sh for $(id -un)."
    [ ! -w "$program" ] || alone
    for installed in "$program"/[0-9]*; do
        if stays_in_use "$installed"; then
            fail "MTP Launcher is running." "Close its window, or run: mtp-launcher stop. Then run this again."
        fi
    done
    autostarts | while read -r file; do rm -f "$file"; done
    wanted=$configuration/systemd/user/default.target.wants/mtp-launcher.service
    [ -e "$wanted" ] || rm -f "$wanted" # a link to a file that is gone
    if [ -L "$command" ] && is_ours "$command"; then rm -f "$command"; fi
    rm -f "$share/applications/mtp-launcher.desktop" "$share"/metainfo/io.github.mtp_launcher.launcher.metainfo.xml \
        "$share"/icons/hicolor/*/apps/mtp-launcher.png "$share"/icons/hicolor/scalable/apps/mtp-launcher.svg \
        "$share/mime/packages/mtp-launcher.xml" \
        "$share/bash-completion/completions/mtp-launcher" "$share/zsh/site-functions/_mtp-launcher" \
        "$share/fish/vendor_completions.d/mtp-launcher.fish" "$share/man/man1/mtp-launcher.1"
    exec 9>&- # on NFS a file that is open does not go
    [ ! -e "$program" ] || rm -rf "$program" || fail "$program could not be removed." "See above."
    [ ! -d "$share/applications" ] || refresh
    if rmdir "$share/mime/packages" 2>/dev/null; then # no types are left, so the lists of them are empty
        for list in XMLnamespaces aliases generic-icons globs globs2 icons magic mime.cache subclasses treemagic types version; do
            rm -f "$share/mime/$list"
        done
    fi
    types=$share/applications/mimeinfo.cache
    if [ -f "$types" ] && ! grep -qv '^\[' "$types"; then rm -f "$types"; fi
    for folder in "$share"/icons/hicolor/*/apps "$share"/icons/hicolor/* "$share/icons/hicolor" "$share/icons" \
        "$share/bash-completion/completions" "$share/bash-completion" "$share/zsh/site-functions" "$share/zsh" \
        "$share/fish/vendor_completions.d" "$share/fish" "$share/man/man1" "$share/man" \
        "$share/mime/application" "$share/mime" "$share/metainfo" "$share/applications" "$share" "$commands" "$HOME/.local/lib" "$HOME/.local"; do
        rmdir "$folder" 2>/dev/null || true # only what is empty goes
    done
    say "$closing"
    for folder in "$share" "$configuration" "${XDG_STATE_HOME:-$HOME/.local/state}" \
        "${XDG_CACHE_HOME:-$HOME/.cache}"; do
        if [ -d "$folder/mtp-launcher" ]; then say "Yours, and left: $folder/mtp-launcher"; fi
    done
}

main() {
    offline='' what=install begun='' signature_open=''
    while [ $# -gt 0 ]; do
        case $1 in
        --offline)
            if [ ! -d "${2:-}" ]; then fail "--offline names no folder." "What it has to hold: sh install.sh --help"; fi
            offline=$(cd "$2" && pwd)
            shift ;;
        --uninstall) what=uninstall ;;
        -h | --help)
            usage
            exit ;;
        *) fail "$1 is not understood." "sh install.sh [--offline DIR | --uninstall]" ;;
        esac
        shift
    done
    HOME=$(case ${HOME:-} in (/*) cd "$HOME" && pwd ;; esac 2>/dev/null) || true # without slashes at its end
    [ -n "$HOME" ] || fail "HOME names no folder." "Set it to your home folder."
    program=$HOME/.local/lib/mtp-launcher
    commands=${XDG_BIN_HOME:-$HOME/.local/bin}
    command=$commands/mtp-launcher
    share=${XDG_DATA_HOME:-$HOME/.local/share}
    configuration=${XDG_CONFIG_HOME:-$HOME/.config}
    work=$program/making
    index=${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-${PIP_INDEX_URL:-$default_index}}}
    index=${index%/}
    releases=${MTP_LAUNCHER_RELEASES:-$releases}
    releases=${releases%/}
    release_key=${MTP_LAUNCHER_RELEASE_KEY:-$release_key}
    $what
}

main "$@"
