# install.sh with a small program in place of uv. .ci/install-sh uses the real uv.

load releases

versions() { (cd "$program" && echo [0-9]*); }

running() { # starts a copy of the program, which runs until descriptor 7 is closed
    mkfifo "$BATS_TEST_TMPDIR/held"
    "$command" wait <"$BATS_TEST_TMPDIR/held" >"$BATS_TEST_TMPDIR/up" 3>&- &
    copy=$!
    exec 7>"$BATS_TEST_TMPDIR/held"
    until [ -s "$BATS_TEST_TMPDIR/up" ]; do sleep 0.02; done
}

ends_soon() { # ends the running copy after a second
    sleep 1 >&7 3>&- &
    exec 7>&-
}

# bats test_tags=essential
@test "it installs the command, a menu entry and icons" {
    install 1.0.0
    [ "$status" -eq 0 ]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    entry=$HOME/.local/share/applications/mtp-launcher.desktop
    grep -qxF "Exec=\"$command\" gui %f" "$entry"
    [ -s "$HOME/.local/share/icons/hicolor/scalable/apps/mtp-launcher.svg" ]
    [ -s "$HOME/.local/share/icons/hicolor/256x256/apps/mtp-launcher.png" ]
    "$ROOT/installer/linux/validate" "$HOME/.local/share"
    grep -q -- "--require-hashes" "$FAKE_LOG"
    grep -q "tool install.*--offline" "$FAKE_LOG"
    [ ! -e "$program/making" ]
    [ ! -e "$program/cache" ]
}

@test "run again, it only repairs the menu entry" {
    install 1.0.0
    rm "$HOME/.local/share/applications/mtp-launcher.desktop" "$FAKE_LOG"
    install 1.0.0
    [[ "$output" == *"installed already"* ]]
    [ -s "$HOME/.local/share/applications/mtp-launcher.desktop" ]
    [ ! -e "$FAKE_LOG" ]
}

@test "a copy that does not start any more is installed again" {
    install 1.0.0
    rm "$program"/1.0.0-*/tools/mtp-launcher/bin/mtp-launcher
    install 1.0.0
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
}

# bats test_tags=essential
@test "an upgrade replaces the old version, also in the files that start it at login" {
    install 1.0.0
    unit=$HOME/.config/systemd/user/mtp-launcher.service
    mkdir -p "${unit%/*}"
    echo "ExecStart=$(readlink -f "$program"/1.0.0-*/tools/mtp-launcher/bin/mtp-launcher) serve --last" >"$unit"
    install 1.1.0
    [ "$("$command" --version)" = "mtp-launcher 1.1.0" ]
    [[ "$(versions)" == 1.1.0-???????? ]]
    grep -qxF "ExecStart=$(echo "$program"/1.1.0-*)/tools/mtp-launcher/bin/mtp-launcher serve --last" "$unit"
}

@test "the start at login works for a home with any name" {
    HOME="$BATS_TEST_TMPDIR/a [b] & c|d"
    unit=$HOME/.config/autostart/mtp-launcher.desktop
    mkdir -p "${unit%/*}"
    install 1.0.0
    echo "Exec=\"$(echo "$HOME"/.local/*/*/1.0.0-*)/tools/mtp-launcher/bin/mtp-launcher\"" >"$unit"
    install 1.1.0
    grep -qF "$HOME/" "$unit"
    grep -qF "/1.1.0-" "$unit"
    ! grep -qF "/1.0.0-" "$unit"
}

@test "a running copy keeps its files during an upgrade" {
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

# bats test_tags=essential
@test "uninstalling leaves only the user's data" {
    mkdir -p "$HOME/.local/share/mtp-launcher/models"
    install 1.0.0
    grep -qx "words for bash" "$HOME/.local/share/bash-completion/completions/mtp-launcher"
    grep -qx "words for zsh" "$HOME/.local/share/zsh/site-functions/_mtp-launcher"
    grep -qx "words for fish" "$HOME/.local/share/fish/vendor_completions.d/mtp-launcher.fish"
    grep -qx "words for manual" "$HOME/.local/share/man/man1/mtp-launcher.1"
    run dash "$program/install.sh" --uninstall
    [ "$status" -eq 0 ]
    [[ "$output" == *"left: $HOME/.local/share/mtp-launcher" ]]
    [ "$(cd "$HOME" && find . | sort | tr '\n' ' ')" = ". ./.local ./.local/share ./.local/share/mtp-launcher ./.local/share/mtp-launcher/models " ]
    run dash "$RELEASES/1.0.0/install.sh" --uninstall
    [ "$status" -eq 0 ]
}

@test "uninstalling again creates nothing" {
    mkdir -p "$HOME/.local/share/icons/mine" "$HOME/.local/share/applications"
    touch "$HOME/.local/share/icons/mine/index.theme" "$HOME/.local/share/applications/mine.desktop"
    run dash "$RELEASES/1.0.0/install.sh" --uninstall
    [ "$status" -eq 0 ]
    [ "$output" = "Nothing was installed here by install.sh for $(id -un)." ]
    [ ! -e "$HOME/.local/share/icons/hicolor" ]
}

@test "uninstalling ends the start at login, but not another installation's" {
    install 1.0.0
    rm "$program"/1.0.0-*/tools/mtp-launcher/bin/mtp-launcher # it could not do so itself
    unit=$HOME/.config/systemd/user/mtp-launcher.service
    wanted=$HOME/.config/systemd/user/default.target.wants/mtp-launcher.service
    entry=$HOME/.config/autostart/mtp-launcher.desktop
    mkdir -p "${wanted%/*}" "${entry%/*}"
    echo "ExecStart=$(echo "$program"/1.0.0-*)/tools/mtp-launcher/bin/mtp-launcher serve --last" >"$unit"
    ln -s "$unit" "$wanted"
    echo "Exec=/usr/lib/mtp-launcher/bin/mtp-launcher serve --last" >"$entry"
    run dash "$program/install.sh" --uninstall
    [ "$status" -eq 0 ]
    [ ! -e "$unit" ]
    [ ! -L "$wanted" ]
    [ -s "$entry" ]
    ln -s "$entry" "$wanted"
    run dash "$RELEASES/1.0.0/install.sh" --uninstall
    [ -L "$wanted" ]
}

@test "a running copy is not uninstalled" {
    install 1.0.0
    running
    instead sleep 'echo "$1" >>"$FAKE_LOG"'
    run dash "$program/install.sh" --uninstall
    refused "MTP Launcher is running"
    exec 7>&-
    wait "$copy" || true
    run dash "$program/install.sh" --uninstall
    [ "$status" -eq 0 ]
}

@test "a copy that is about to end is waited for" {
    install 1.0.0
    running
    rm "$program"/1.0.0-*/complete
    ends_soon
    install 1.0.0
    [ "$status" -eq 0 ]
    rm "$BATS_TEST_TMPDIR/held" "$BATS_TEST_TMPDIR/up"
    running
    ends_soon
    run dash "$program/install.sh" --uninstall
    [ "$status" -eq 0 ]
    [ ! -e "$program" ]
}

@test "old glibc, musl, another processor and another system are refused with the reason" {
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

@test "newer glibc is accepted, also version 3" {
    instead getconf 'echo glibc 3.1'
    install 1.0.0
    [ "$status" -eq 0 ]
}

# bats test_tags=essential
@test "a file that is not of the release is refused, and the old version stays" {
    install 1.0.0
    cp -r "$RELEASES/1.1.0" "$BATS_TEST_TMPDIR/cut"
    echo "cut short" >"$BATS_TEST_TMPDIR/cut/mtp_launcher-1.1.0-py3-none-any.whl"
    run dash "$RELEASES/1.1.0/install.sh" --offline "$BATS_TEST_TMPDIR/cut"
    refused "SHA-256 differs"
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    [[ "$(versions)" == 1.0.0-???????? ]]
    [ ! -e "$program/making" ]
}

@test "a folder without the release's files is refused with the reason" {
    cp -r "$RELEASES/1.0.0" "$BATS_TEST_TMPDIR/lacks"
    rm "$BATS_TEST_TMPDIR/lacks/mtp_launcher-1.0.0-py3-none-any.whl"
    run dash "$RELEASES/1.0.0/install.sh" --offline "$BATS_TEST_TMPDIR/lacks"
    refused "holds no mtp_launcher-1.0.0-py3-none-any.whl"
    run dash "$RELEASES/1.0.0/install.sh" --offline "$HOME"
    refused "holds no manifest.json"
}

@test "a disk that fills up changes nothing, and the next run finishes" {
    install 1.0.0
    FAKE_FULL=1 install 1.1.0
    refused "run this again"
    [[ "$output" == *"No space left"* ]]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    install 1.1.0
    [ "$("$command" --version)" = "mtp-launcher 1.1.0" ]
}

@test "a disk that is too full is reported before anything is written" {
    instead df 'echo; echo "/dev/sda1 1000000 900000 102400 90% /"'
    install 1.0.0
    refused "has 100 MiB"
}

@test "files of an earlier attempt count as free space" {
    instead df 'echo; echo "/dev/sda1 1000000 900000 911360 90% /"' # 890 MiB
    install 1.0.0
    refused "has 890 MiB"
    mkdir -p "$program/cache"
    head -c 20M /dev/zero >"$program/cache/wheel"
    install 1.0.0
    [ "$status" -eq 0 ]
}

@test "a missing home is reported, and a slash at its end changes nothing" {
    run env -u HOME dash "$RELEASES/1.0.0/install.sh"
    refused "HOME names no folder."
    HOME=nowhere run dash "$RELEASES/1.0.0/install.sh" --uninstall
    refused "HOME names no folder."
    HOME=$HOME/ install 1.0.0
    running
    HOME=$HOME/ install 1.1.0
    [ "$status" -eq 0 ]
    [[ "$(versions)" == 1.0.0-????????" "1.1.0-???????? ]]
    exec 7>&-
    wait "$copy" || true
}

@test "a home that cannot be written is reported" {
    HOME=/proc/self install 1.0.0
    refused "cannot be written"
}

@test "an unforeseen error also ends with a sentence, and the script can be run again" {
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

@test "root in another user's home is refused" {
    instead id 'echo 0'
    instead stat 'echo 1000'
    install 1.0.0
    refused "without sudo"
}

@test "a missing Python is reported" {
    FAKE_NO_PYTHON=1 install 1.0.0
    refused "There is no Python from 3.11 to 3.14 here."
    [ ! -e "$command" ]
}

@test "a Python that was built without some of its modules is reported" {
    instead python3 'exit 1'
    install 1.0.0
    refused "$BATS_TEST_TMPDIR/bin/python3 lacks modules of Python's own."
    [[ "$output" == *"Install one: the package is called python3."* ]]
}

@test "the user's configuration of uv is ignored" {
    mkdir "$BATS_TEST_TMPDIR/project"
    cd "$BATS_TEST_TMPDIR/project"
    echo 'required-version = "==0.4.0"' >uv.toml
    UV_NO_CACHE=1 install 1.0.0
    [ "$status" -eq 0 ]
}

@test "uv that does not start is reported" {
    FAKE_STARTS_NOT=1 install 1.0.0
    refused "uv, which installs the program, does not start here."
    [[ "$output" == *"noexec"* ]]
}

@test "another program of that name is left alone" {
    mkdir -p "$HOME/.local/bin"
    echo mine >"$command"
    install 1.0.0
    refused "is not from this installer"
    [ "$(cat "$command")" = mine ]
}

@test "a second installation at the same time is refused" {
    mkdir -p "$program"
    exec 8>"$program/lock"
    flock 8
    install 1.0.0
    refused "Another installation is under way"
    run dash "$RELEASES/1.0.0/install.sh" --uninstall
    refused "Another installation is under way"
    instead flock 'echo "flock: 9: No locks available" >&2; exit 71' # a home on a server that has none
    install 1.0.0
    [ "$status" -eq 0 ]
}

@test "it runs from a pipe, also beside a file with the shell's name" {
    cd "$BATS_TEST_TMPDIR"
    echo "mine" >dash
    run dash -s -- --offline "$RELEASES/1.0.0" <"$RELEASES/1.0.0/install.sh"
    [ "$status" -eq 0 ]
    cmp "$program/install.sh" "$RELEASES/1.0.0/install.sh"
}

@test "run from a pipe with a folder, it keeps the folder's install.sh and downloads nothing" {
    for each in curl wget; do
        instead "$each" 'echo "$0" >>"$FAKE_LOG.fetched"; exit 7'
    done
    folder=$BATS_TEST_TMPDIR/folder
    cp -r "$RELEASES/1.0.0" "$folder"
    cp "$RELEASES/1.1.0/install.sh" "$folder/"
    run dash -s -- --offline "$folder" <"$RELEASES/1.0.0/install.sh"
    refused "$folder/install.sh is not the one of the release that was signed."
    rm "$folder/install.sh"
    run dash -s -- --offline "$folder" <"$RELEASES/1.0.0/install.sh"
    refused "$folder holds no install.sh"
    cp "$RELEASES/1.0.0/install.sh" "$folder/"
    run dash -s -- --offline "$folder" <"$RELEASES/1.0.0/install.sh"
    [ "$status" -eq 0 ]
    cmp "$program/install.sh" "$RELEASES/1.0.0/install.sh"
    rm "$folder/install.sh"
    run dash -s -- --offline "$folder" <"$RELEASES/1.0.0/install.sh" # it is there already
    [ "$status" -eq 0 ]
    [ ! -e "$FAKE_LOG.fetched" ]
}

@test "a Python that cannot unpack is not used" {
    few openssl
    instead python3 'echo "No module named shutil" >&2; exit 1'
    run env PATH="$BATS_TEST_TMPDIR/bin:$BATS_TEST_TMPDIR/few" \
        "$(command -v dash)" "$RELEASES/1.0.0/install.sh" --offline "$RELEASES/1.0.0"
    refused "Install unzip, or the package python3."
    [[ "$output" != *"shutil"* ]]
}

@test "the copy in a checkout is refused" {
    run dash "$ROOT/installer/linux/install.sh"
    refused "lies in a checkout"
}

@test "a home with a strange name is supported" {
    HOME="$BATS_TEST_TMPDIR/a b\$c%d\"e"
    mkdir "$HOME"
    install 1.0.0
    [ "$status" -eq 0 ]
    entry=$HOME/.local/share/applications/mtp-launcher.desktop
    desktop-file-validate "$entry"
    grep -qF 'a b\\$c%%d\\"e/.local/bin/mtp-launcher" gui' "$entry"
}

@test "help is printed, and unknown options are refused" {
    run dash "$RELEASES/1.0.0/install.sh" --help
    [ "$status" -eq 0 ]
    [[ "$output" == *"--uninstall"* ]]
    [[ "$output" == *"pip download "*" -d DIR -r mtp_launcher-1.0.0-requirements.txt"* ]]
    help=$output
    run dash -s -- --help <"$RELEASES/1.0.0/install.sh"
    [ "$status" -eq 0 ]
    [ "$output" = "$help" ]
    run dash "$RELEASES/1.0.0/install.sh" --frobnicate
    refused "--frobnicate is not understood"
    run dash "$RELEASES/1.0.0/install.sh" --offline /nowhere
    refused "names no folder"
}
