#!/bin/sh
# The half of install-in-wsl.ps1 that runs inside a distribution of WSL; POSIX sh.
#
#   inside.sh check              reports what is here and what is missing; exit code 1 if the program cannot be installed
#   inside.sh install DEB        as root: verifies and installs the Debian package
#   inside.sh install install.sh [OFFLINE]   as the user: verifies and runs that script
#   inside.sh icon FILE          writes the program's icon to FILE, in the format of Windows
#   inside.sh command            prints the command that opens the window
#
# The installed file must be beside manifest.json and its signature. WSL_ROOT, for tests, is the folder that stands for /;
# MTP_LAUNCHER_RELEASE_KEY is the public key of a release that you signed yourself.
set -eu

# Written by installer/wsl/build-install.
release_key=

release_key=${MTP_LAUNCHER_RELEASE_KEY:-$release_key}
root=${WSL_ROOT:-}
wanted_kib=12582912 # 12 GiB: for the experts of a large model, which a GPU has no room for

say() { printf '%s\n' "$*"; }
good() { say "  ok       $*"; }
note() { say "  note     $*"; }
bad() {
    say "  missing  $*"
    code=1
}
fail() {
    printf 'Error: %s\n       %s\n' "$1" "$2" >&2
    exit 1
}

# include ../linux/verify.sh

check() {
    code=0
    case $(cat "$root/proc/sys/kernel/osrelease" 2>/dev/null) in
    *[Ww][Ss][Ll]2* | *microsoft-standard*) good "This is WSL 2." ;;
    *) bad "This is not WSL 2. In Windows: wsl --set-version ${WSL_DISTRO_NAME:-DISTRIBUTION} 2" ;;
    esac
    check_way
    check_display
    check_gpu
    check_memory
    check_models
    return $code
}

check_way() {
    if command -v apt-get >/dev/null; then
        good "Packages are installed by apt, as the .deb needs it."
    else
        note "There is no apt here: install.sh installs the program, for one user."
    fi
    [ "$(uname -m)" = x86_64 ] || bad "There are builds for x86_64 processors only; this is $(uname -m)."
}

check_display() {
    if [ -d "$root/mnt/wslg" ]; then
        good "WSLg shows windows of Linux programs."
    else
        bad "WSLg, which shows the window, is missing. In Windows: wsl --update, then wsl --shutdown." \
            "Is guiApplications off in .wslconfig?"
    fi
}

check_gpu() {
    if [ ! -e "$root/dev/dxg" ]; then
        note "Windows shares no GPU with WSL (no /dev/dxg). In Windows: install its driver, then wsl --update." \
            "The demo needs no GPU."
    elif [ -e "$root/usr/lib/wsl/lib/libnvidia-ml.so.1" ]; then
        good "WSL can use the NVIDIA driver of Windows. Install none inside WSL."
    else
        note "Windows shares a GPU, but no NVIDIA driver: engines for Vulkan or the processor are used."
    fi
    if ls "$root"/usr/lib/x86_64-linux-gnu/libcuda.so.*.* >/dev/null 2>&1; then
        note "An NVIDIA driver for Linux is installed inside WSL and hides the driver of Windows: remove it."
    fi
}

check_memory() {
    kib=$(awk '/^MemTotal:/ { print $2 }' "$root/proc/meminfo" 2>/dev/null || echo 0)
    gib=$(awk -v kib="${kib:-0}" 'BEGIN { printf "%.1f", kib / 1048576 }')
    if [ "${kib:-0}" -ge "$wanted_kib" ]; then
        good "WSL has $gib GiB of memory."
    else
        note "WSL has $gib GiB of memory; the default is half of the computer's. Large models need more:" \
            "'mtp-launcher doctor' suggests a .wslconfig."
    fi
}

# Models on a Windows drive load many times slower, and cannot be mapped into memory.
check_models() {
    settings=${XDG_CONFIG_HOME:-$HOME/.config}/mtp-launcher/settings.toml
    chosen=$(sed -n 's/^ *folder *= *"\(.*\)".*/\1/p' "$settings" 2>/dev/null | head -n 1 || true)
    models=${MTP_LAUNCHER_MODELS:-${chosen:-${XDG_DATA_HOME:-$HOME/.local/share}/mtp-launcher/models}}
    case $models in
    /mnt/[a-z] | /mnt/[a-z]/*)
        note "Models are kept in $models, on a Windows drive, where loading is many times slower:" \
            "choose a folder inside Linux." ;;
    *) good "Models are kept in $models." ;;
    esac
}

install() {
    [ -f "$1" ] || fail "There is no $1." "Name the .deb or the install.sh of the release."
    [ -n "$release_key" ] || fail "This copy of inside.sh has no key to verify releases with." \
        "Use the one of a release, or set MTP_LAUNCHER_RELEASE_KEY to a public key."
    case $1 in (*.deb) [ "$(id -u)" = 0 ] || fail "Only root can install a package." "Run it with: wsl -u root" ;; esac
    # Copies are verified, so that nobody can change them afterwards; and apt's own user cannot read a Windows drive.
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    mkdir "$folder/scratch"
    for name in "${1##*/}" manifest.json manifest.json.minisig; do
        cp "$(dirname "$1")/$name" "$folder/" 2>/dev/null ||
            fail "There is no $name beside ${1##*/}." "Copy all files of the release there."
    done
    case $1 in
    *.deb)
        chmod 755 "$folder"
        verify_copy "${1##*/}"
        installed=$(dpkg-query -W -f '${Version}' mtp-launcher 2>/dev/null || true)
        if [ -n "$installed" ] && is_older "$version" "$installed"; then
            fail "MTP Launcher $installed is installed, and this is $version, which is older." \
                "To go back, remove it first: install-in-wsl.ps1 -Uninstall. Models, settings and history stay."
        fi
        renew_lists
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$folder/${1##*/}" ;;
    *)
        verify_copy "${1##*/}"
        if [ -n "${2:-}" ]; then sh "$1" --offline "$2"; else sh "$1"; fi ;;
    esac
}

renew_lists() { apt-get update -qq || say "The package lists could not be updated; the old ones are used."; }

# verify_copy NAME: stops unless $folder/NAME is a file of the release that the maintainer signed; leaves its $version
verify_copy() {
    verdict=0
    verify_signature "$folder/manifest.json" "$release_key" "$folder/scratch" || verdict=$?
    if [ $verdict = 2 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        renew_lists
        apt-get install -y -qq --no-install-recommends openssl >/dev/null || true # signed by the distribution
        verdict=0
        verify_signature "$folder/manifest.json" "$release_key" "$folder/scratch" || verdict=$?
    fi
    [ $verdict != 2 ] || fail "There is nothing to verify the release with." "Install openssl (3.0 or later) or minisign."
    [ $verdict = 0 ] || fail "manifest.json is not signed by this program's maintainer, so nothing was installed." \
        "Download all files of the release again. If this persists, report it to the project."
    matches "$folder/$1" "$(manifest_sum "$folder/manifest.json" "$1")" ||
        fail "$1 is not a file of the release that was signed." "Download all files of the release again."
    version=$(manifest_version "$folder/manifest.json")
}

# An .ico file may contain a single picture as PNG: a header (6 bytes), the picture's entry (16), the picture.
icon() {
    png=
    for each in "$root/usr/share" "${XDG_DATA_HOME:-$HOME/.local/share}"; do
        if [ -z "$png" ] && [ -f "$each/icons/hicolor/256x256/apps/mtp-launcher.png" ]; then
            png=$each/icons/hicolor/256x256/apps/mtp-launcher.png
        fi
    done
    [ -n "$png" ] || fail "The program's icon is missing." "Is the program installed?"
    size=$(wc -c <"$png")
    {
        printf '\0\0\1\0\1\0\0\0\0\0\1\0\040\0'
        little_endian "$size"
        little_endian 22
        cat "$png"
    } >"$1"
}

# Prints a number as four bytes, the lowest first.
little_endian() {
    rest=$1
    for _ in 1 2 3 4; do
        # shellcheck disable=SC2059 # the byte is in the format
        printf "\\$(printf %03o $((rest % 256)))"
        rest=$((rest / 256))
    done
}

command_line() {
    for each in "$root/usr/bin/mtp-launcher" "${XDG_BIN_HOME:-$HOME/.local/bin}/mtp-launcher"; do
        if [ -x "$each" ]; then
            say "$each"
            return
        fi
    done
    fail "MTP Launcher is not installed here." "Install it first."
}

case ${1:-} in
check) check ;;
install) install "${2:?}" "${3:-}" ;;
icon) icon "${2:?}" ;;
command) command_line ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2 ;;
esac
