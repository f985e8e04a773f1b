# install.sh with a small program in uv's place. The real one: .ci/install-sh

setup_file() {
    export ROOT="$BATS_TEST_DIRNAME/../.." FAKE_RESOURCES="$BATS_TEST_DIRNAME/../../resources"
    export RELEASES="$BATS_FILE_TMPDIR"
    release 1.0.0
    release 1.1.0
}

# release VERSION: makes one in $RELEASES, stamped as installer/linux/build-install does
release() {
    mkdir "$RELEASES/$1"
    cd "$RELEASES/$1"
    installer=$ROOT/installer/linux/install.sh
    uv=$(sed -n 's/^uv_version=//p' "$installer")
    uv_wheel=uv-$uv-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl
    mkdir -p "uv-$uv.data/scripts"
    cp "$BATS_TEST_DIRNAME/fake_uv" "uv-$uv.data/scripts/uv"
    python3 -m zipfile -c "$uv_wheel" "uv-$uv.data"
    rm -r "uv-$uv.data"
    echo "the program $1" >"mtp_launcher-$1-py3-none-any.whl"
    echo "the requirements of $1" >"mtp_launcher-$1-requirements.txt"
    sed -e "s/^version=$/version=$1/" -e "s/^wheel=$/wheel=mtp_launcher-$1-py3-none-any.whl/" \
        -e "s/^wheel_sha256=$/wheel_sha256=$(sum "mtp_launcher-$1-py3-none-any.whl")/" \
        -e "s/^lock_sha256=$/lock_sha256=$(sum "mtp_launcher-$1-requirements.txt")/" \
        -e "s/^uv_sha256=.*/uv_sha256=$(sum "$uv_wheel")/" "$installer" >install.sh
    mkdir -p simple/uv
    printf '<a href="../../%s#sha256=0">%s</a>\n' "$uv_wheel" "$uv_wheel" >simple/uv/index.html
}

sum() { sha256sum "$1" | cut -c 1-64; }

setup() {
    export HOME=$BATS_TEST_TMPDIR/home FAKE_LOG=$BATS_TEST_TMPDIR/log
    mkdir "$HOME" "$BATS_TEST_TMPDIR/bin"
    unset XDG_DATA_HOME XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME XDG_BIN_HOME MTP_LAUNCHER_RELEASES
    unset UV_DEFAULT_INDEX UV_INDEX_URL PIP_INDEX_URL http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY
    PATH=$BATS_TEST_TMPDIR/bin:$PATH
    command=$HOME/.local/bin/mtp-launcher
    program=$HOME/.local/lib/mtp-launcher
}

teardown() {
    if [ -n "${server:-}" ]; then kill "$server"; fi
}

# instead NAME LINE: a program of that name comes first on PATH
instead() {
    printf '#!/bin/sh\n%s\n' "$2" >"$BATS_TEST_TMPDIR/bin/$1"
    chmod 755 "$BATS_TEST_TMPDIR/bin/$1"
}

install() { run dash "$RELEASES/$1/install.sh" --offline "$RELEASES/$1"; }

versions() { (cd "$program" && echo [0-9]*); }

refused() { # STATUS is 1, and the sentence is told
    echo "$output"
    [ "$status" -eq 1 ]
    [[ "$output" == *"$1"* ]]
}

running() { # a copy of the program runs from here on, until the end of descriptor 7
    mkfifo "$BATS_TEST_TMPDIR/held"
    "$command" wait <"$BATS_TEST_TMPDIR/held" >"$BATS_TEST_TMPDIR/up" 3>&- &
    copy=$!
    exec 7>"$BATS_TEST_TMPDIR/held"
    until [ -s "$BATS_TEST_TMPDIR/up" ]; do sleep 0.02; done
}

serve() { # FOLDER, at $address
    python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$1" >"$BATS_TEST_TMPDIR/port" 2>/dev/null 3>&- &
    server=$!
    until grep -q port "$BATS_TEST_TMPDIR/port"; do sleep 0.02; done
    address=http://127.0.0.1:$(sed -n 's/.*port \([0-9]*\).*/\1/p' "$BATS_TEST_TMPDIR/port")
}

@test "it installs the command, a menu entry and icons" {
    install 1.0.0
    [ "$status" -eq 0 ]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    entry=$HOME/.local/share/applications/mtp-launcher.desktop
    grep -qxF "Exec=\"$command\" gui" "$entry"
    [ -s "$HOME/.local/share/icons/hicolor/scalable/apps/mtp-launcher.svg" ]
    [ -s "$HOME/.local/share/icons/hicolor/256x256/apps/mtp-launcher.png" ]
    "$ROOT/installer/linux/validate" "$HOME/.local/share"
    grep -q -- "--require-hashes" "$FAKE_LOG"
    grep -q "tool install.*--offline" "$FAKE_LOG"
    [ ! -e "$program/making" ]
    [ ! -e "$program/cache" ]
}

@test "a second time it has nothing to do, and mends the menu entry" {
    install 1.0.0
    rm "$HOME/.local/share/applications/mtp-launcher.desktop" "$FAKE_LOG"
    install 1.0.0
    [[ "$output" == *"installed already"* ]]
    [ -s "$HOME/.local/share/applications/mtp-launcher.desktop" ]
    [ ! -e "$FAKE_LOG" ]
}

@test "what does not start any more is installed anew" {
    install 1.0.0
    rm "$program"/1.0.0-*/tools/mtp-launcher/bin/mtp-launcher
    install 1.0.0
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
}

@test "an upgrade takes the old version's place, also where it starts at login" {
    install 1.0.0
    unit=$HOME/.config/systemd/user/mtp-launcher.service
    mkdir -p "${unit%/*}"
    echo "ExecStart=$(readlink -f "$program"/1.0.0-*/tools/mtp-launcher/bin/mtp-launcher) serve --last" >"$unit"
    install 1.1.0
    [ "$("$command" --version)" = "mtp-launcher 1.1.0" ]
    [[ "$(versions)" == 1.1.0-???????? ]]
    grep -qxF "ExecStart=$(echo "$program"/1.1.0-*)/tools/mtp-launcher/bin/mtp-launcher serve --last" "$unit"
}

@test "a copy that runs keeps its files through an upgrade" {
    install 1.0.0
    running
    install 1.1.0
    [ "$status" -eq 0 ]
    [[ "$(versions)" == 1.0.0-????????" "1.1.0-???????? ]]
    exec 7>&-
    wait "$copy" || true
    install 1.1.0
    [[ "$(versions)" == 1.1.0-???????? ]]
}

@test "uninstalling leaves nothing but what is the user's" {
    mkdir -p "$HOME/.local/share/mtp-launcher/models"
    install 1.0.0
    run dash "$program/install.sh" --uninstall
    [ "$status" -eq 0 ]
    [[ "$output" == *"left: $HOME/.local/share/mtp-launcher" ]]
    [ "$(cd "$HOME" && find . | sort | tr '\n' ' ')" = ". ./.local ./.local/share ./.local/share/mtp-launcher ./.local/share/mtp-launcher/models " ]
    run dash "$RELEASES/1.0.0/install.sh" --uninstall
    [ "$status" -eq 0 ]
}

@test "a running copy is not uninstalled" {
    install 1.0.0
    running
    run dash "$program/install.sh" --uninstall
    refused "MTP Launcher is running"
    exec 7>&-
    wait "$copy" || true
    run dash "$program/install.sh" --uninstall
    [ "$status" -eq 0 ]
}

@test "old glibc, musl, another processor and another system are told" {
    instead getconf 'echo glibc 2.31'
    install 1.0.0
    refused "glibc here is 2.31"
    instead getconf 'exit 1'
    instead ldd 'echo "musl libc (x86_64)"'
    install 1.0.0
    refused "musl"
    rm "$BATS_TEST_TMPDIR/bin/getconf"
    instead uname '[ "$1" = -s ] && echo Linux || echo aarch64'
    install 1.0.0
    refused "aarch64"
    instead uname 'echo Darwin'
    install 1.0.0
    refused "Darwin"
    [ ! -e "$HOME/.local" ]
}

@test "newer glibc is taken, also a third" {
    instead getconf 'echo glibc 3.1'
    install 1.0.0
    [ "$status" -eq 0 ]
}

@test "a file that is not the release's is refused, and what was there stays" {
    install 1.0.0
    cp -r "$RELEASES/1.1.0" "$BATS_TEST_TMPDIR/cut"
    echo "cut short" >"$BATS_TEST_TMPDIR/cut/mtp_launcher-1.1.0-py3-none-any.whl"
    run dash "$RELEASES/1.1.0/install.sh" --offline "$BATS_TEST_TMPDIR/cut"
    refused "SHA-256 is another one"
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    [[ "$(versions)" == 1.0.0-???????? ]]
    [ ! -e "$program/making" ]
}

@test "a folder without the release's files is told" {
    run dash "$RELEASES/1.0.0/install.sh" --offline "$RELEASES/1.1.0"
    refused "holds no mtp_launcher-1.0.0-py3-none-any.whl"
}

@test "a disk that gets full changes nothing, and the next run finishes" {
    install 1.0.0
    FAKE_FULL=1 install 1.1.0
    refused "run this again"
    [[ "$output" == *"No space left"* ]]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    install 1.1.0
    [ "$("$command" --version)" = "mtp-launcher 1.1.0" ]
}

@test "a disk that is too full is told beforehand" {
    instead df 'echo; echo "/dev/sda1 1000000 900000 102400 90% /"'
    install 1.0.0
    refused "has 100 MiB"
}

@test "a home that cannot be written is told" {
    HOME=/proc/self install 1.0.0
    refused "cannot be written"
}

@test "what nobody foresaw ends in a sentence, too, and can be run again" {
    mkdir -p "$HOME/.local/share"
    : >"$HOME/.local/share/icons"
    install 1.0.0
    refused "The installation stopped."
    [ ! -e "$command" ]
    [ ! -e "$program/making" ]
    rm "$HOME/.local/share/icons"
    install 1.0.0
    [ "$status" -eq 0 ]
}

@test "root in another user's home is told" {
    instead id 'echo 0'
    instead stat 'echo 1000'
    install 1.0.0
    refused "without sudo"
}

@test "no Python is told" {
    FAKE_NO_PYTHON=1 install 1.0.0
    refused "There is no Python from 3.11 to 3.14 here."
    [ ! -e "$command" ]
}

@test "another program of that name is left alone" {
    mkdir -p "$HOME/.local/bin"
    echo mine >"$command"
    install 1.0.0
    refused "is not from this installer"
    [ "$(cat "$command")" = mine ]
}

@test "two at once are not" {
    mkdir -p "$program"
    exec 8>"$program/lock"
    flock 8
    install 1.0.0
    refused "Another installation is under way"
}

@test "over the network: the release, and uv from the index" {
    release=$RELEASES/1.0.0
    serve "$release"
    MTP_LAUNCHER_RELEASES=$address/ PIP_INDEX_URL=$address/simple run dash "$release/install.sh"
    [ "$status" -eq 0 ]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    dash "$program/install.sh" --uninstall
    MTP_LAUNCHER_RELEASES=$address PIP_INDEX_URL=$address run dash "$release/install.sh"
    refused "does not tell where uv"
    MTP_LAUNCHER_RELEASES=$address PIP_INDEX_URL=$address/simple run dash <"$release/install.sh" # curl ... | sh
    [ "$status" -eq 0 ]
    cmp "$program/install.sh" "$release/install.sh"
}

@test "through a proxy, which knows names that this computer does not" {
    mkdir -p "$BATS_TEST_TMPDIR/net/http:"
    ln -s "$RELEASES/1.0.0" "$BATS_TEST_TMPDIR/net/http:/releases.invalid"
    serve "$BATS_TEST_TMPDIR/net"
    export http_proxy=$address MTP_LAUNCHER_RELEASES=http://releases.invalid
    UV_INDEX_URL=http://releases.invalid/simple/ run dash "$RELEASES/1.0.0/install.sh"
    [ "$status" -eq 0 ]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
}

@test "no network is told" {
    MTP_LAUNCHER_RELEASES=http://127.0.0.1:1 run dash "$RELEASES/1.0.0/install.sh"
    refused "Is there a network?"
    run dash "$RELEASES/1.0.0/install.sh"
    refused "does not say where its releases are"
}

@test "the copy in a checkout says so" {
    run dash "$ROOT/installer/linux/install.sh"
    refused "lies in a checkout"
}

@test "a home with a strange name" {
    HOME="$BATS_TEST_TMPDIR/a b\$c%d\"e"
    mkdir "$HOME"
    install 1.0.0
    [ "$status" -eq 0 ]
    entry=$HOME/.local/share/applications/mtp-launcher.desktop
    desktop-file-validate "$entry"
    grep -qF 'a b\\$c%%d\\"e/.local/bin/mtp-launcher" gui' "$entry"
}

@test "what is not understood" {
    run dash "$RELEASES/1.0.0/install.sh" --help
    [ "$status" -eq 0 ]
    [[ "$output" == *"--uninstall"* ]]
    run dash "$RELEASES/1.0.0/install.sh" --frobnicate
    refused "--frobnicate is not understood"
    run dash "$RELEASES/1.0.0/install.sh" --offline /nowhere
    refused "names no folder"
}
