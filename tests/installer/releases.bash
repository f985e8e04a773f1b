# Shared by the tests of install.sh: two signed releases with a small program in place of uv, and a home for each test.

setup_file() {
    export ROOT="$BATS_TEST_DIRNAME/../.." FAKE_RESOURCES="$BATS_TEST_DIRNAME/../../resources"
    export RELEASES="$BATS_FILE_TMPDIR"
    minisign -G -W -p "$RELEASES/key.pub" -s "$RELEASES/key" >/dev/null
    release 1.0.0
    release 1.1.0
}

# release VERSION: makes a release in $RELEASES, stamped as by installer/linux/build-install
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
    python3 "$ROOT/installer/stamp.py" "$installer" version="$1" wheel="mtp_launcher-$1-py3-none-any.whl" \
        wheel_sha256="$(sum "mtp_launcher-$1-py3-none-any.whl")" \
        lock_sha256="$(sum "mtp_launcher-$1-requirements.txt")" release_key="$(tail -n 1 "$RELEASES/key.pub")" |
        sed "s/^uv_sha256=.*/uv_sha256=$(sum "$uv_wheel")/" >install.sh
    sign "$1"
    mkdir -p simple/uv
    printf '<a href="../../%s#sha256=0">%s</a>\n' "$uv_wheel" "$uv_wheel" >simple/uv/index.html
}

# sign VERSION [KEY]: writes the manifest of the release in this folder, formatted as by installer/manifest.py, and signs it
sign() {
    {
        printf '{\n "version": "%s",\n "notes": "{\\"name\\": \\"install.sh\\", braces",\n "artefacts": [' "$1"
        separator=''
        for each in install.sh mtp_launcher-*; do
            printf '%s\n  {\n   "name": "%s",\n   "platform": "any",\n   "size": 1,\n   "sha256": "%s",\n' \
                "$separator" "$each" "$(sum "$each")"
            printf '   "holds": [\n    {\n     "name": "mtp-launcher",\n     "version": "9"\n    }\n   ]\n  }'
            separator=,
        done
        printf '\n ]\n}\n'
    } >manifest.json
    minisign -S -s "${2:-$RELEASES/key}" -m manifest.json >/dev/null
}

sum() { sha256sum "$1" | cut -c 1-64; }

setup() {
    export HOME=$BATS_TEST_TMPDIR/home FAKE_LOG=$BATS_TEST_TMPDIR/log
    mkdir "$HOME" "$BATS_TEST_TMPDIR/bin"
    unset XDG_DATA_HOME XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME XDG_BIN_HOME
    unset MTP_LAUNCHER_RELEASES MTP_LAUNCHER_RELEASE_KEY
    unset UV_DEFAULT_INDEX UV_INDEX_URL PIP_INDEX_URL http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY
    unset no_proxy NO_PROXY
    PATH=$BATS_TEST_TMPDIR/bin:$PATH
    command=$HOME/.local/bin/mtp-launcher
    program=$HOME/.local/lib/mtp-launcher
}

# instead NAME LINE: puts a program of that name, a shell line, first on PATH
instead() {
    printf '#!/bin/sh\n%s\n' "$2" >"$BATS_TEST_TMPDIR/bin/$1"
    chmod 755 "$BATS_TEST_TMPDIR/bin/$1"
}

few() { # [MORE ...]: makes a folder for PATH with the programs that install.sh always needs
    mkdir "$BATS_TEST_TMPDIR/few"
    for each in uname getconf head sha256sum cut dirname id stat mkdir readlink df du awk grep sed rm cat cp flock sleep \
        tr wc tail base64 sort "$@"; do
        ln -s "$(command -v "$each")" "$BATS_TEST_TMPDIR/few/"
    done
}

install() { run dash "$RELEASES/$1/install.sh" --offline "$RELEASES/$1"; }

refused() { # SENTENCE: checks that the script ended with status 1 and printed the sentence
    echo "$output"
    [ "$status" -eq 1 ]
    [[ "$output" == *"$1"* ]]
}
