# install.sh with a release and a package index on this computer, and a small program in uv's place

load releases

teardown() {
    if [ -n "${server:-}" ]; then kill "$server"; fi
}

serve() { # FOLDER, at $address
    python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$1" >"$BATS_TEST_TMPDIR/port" 2>/dev/null 3>&- &
    server=$!
    until grep -q port "$BATS_TEST_TMPDIR/port"; do sleep 0.02; done
    address=http://127.0.0.1:$(sed -n 's/.*port \([0-9]*\).*/\1/p' "$BATS_TEST_TMPDIR/port")
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

@test "an index that names its files by their names alone" {
    release=$RELEASES/1.0.0
    mkdir -p "$BATS_TEST_TMPDIR/net/simple/uv"
    cp "$release"/*.* "$BATS_TEST_TMPDIR/net/"
    mv "$BATS_TEST_TMPDIR"/net/uv-*.whl "$BATS_TEST_TMPDIR/net/simple/uv/"
    (cd "$BATS_TEST_TMPDIR/net/simple/uv" && printf '<a href="%s#sha256=0">a</a>\n' uv-*.whl >index.html)
    serve "$BATS_TEST_TMPDIR/net"
    MTP_LAUNCHER_RELEASES=$address UV_DEFAULT_INDEX=$address/simple run dash "$release/install.sh"
    [ "$status" -eq 0 ]
}

@test "without curl, wget is told of the proxy" {
    mkdir "$BATS_TEST_TMPDIR/few"
    for each in uname getconf head sha256sum cut id stat mkdir readlink df du awk grep sed rm cat flock; do
        ln -s "$(command -v "$each")" "$BATS_TEST_TMPDIR/few/"
    done
    instead wget 'echo "proxy $https_proxy, not for $no_proxy"; exit 4'
    run env PATH="$BATS_TEST_TMPDIR/bin:$BATS_TEST_TMPDIR/few" HTTPS_PROXY=http://proxy.invalid:3128 NO_PROXY=here \
        MTP_LAUNCHER_RELEASES=https://releases.invalid "$(command -v dash)" "$RELEASES/1.0.0/install.sh"
    refused "proxy http://proxy.invalid:3128, not for here"
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
