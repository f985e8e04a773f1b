# install.sh with a release and a package index on this computer, and a small program in place of uv

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

@test "the release is downloaded, and uv from the index" {
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

@test "files that are beside the script are not downloaded" {
    mkdir "$BATS_TEST_TMPDIR/index"
    cp -r "$RELEASES"/1.0.0/simple "$RELEASES"/1.0.0/uv-*.whl "$BATS_TEST_TMPDIR/index/"
    serve "$BATS_TEST_TMPDIR/index"
    folder=$BATS_TEST_TMPDIR/folder
    mkdir "$folder"
    cp "$RELEASES"/1.0.0/mtp_launcher-* "$RELEASES"/1.0.0/manifest.json* "$RELEASES/1.0.0/install.sh" "$folder/"
    cd "$folder"
    PIP_INDEX_URL=$address/simple run dash install.sh
    [ "$status" -eq 0 ]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
    dash "$program/install.sh" --uninstall
    echo "changed" >>"$folder/mtp_launcher-1.0.0-py3-none-any.whl"
    PIP_INDEX_URL=$address/simple run dash install.sh
    refused "SHA-256 differs"
}

@test "a certificate that is not trusted is named, by curl and by wget" {
    python3 -c '
import http.server, ssl, sys
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
server.socket = context.wrap_socket(server.socket, server_side=True)
print("port", server.server_port, flush=True)
server.serve_forever()
' "$ROOT/tests/base/data/loopback.pem" >"$BATS_TEST_TMPDIR/port" 2>/dev/null 3>&- &
    server=$!
    until [ -s "$BATS_TEST_TMPDIR/port" ]; do sleep 0.02; done
    address=https://127.0.0.1:$(cut -d ' ' -f 2 "$BATS_TEST_TMPDIR/port")
    UV_DEFAULT_INDEX=$address run dash "$RELEASES/1.0.0/install.sh"
    refused "does not tell where uv"
    refused "The server's certificate is not one that this computer trusts."
    [[ "$output" == *"SSL_CERT_FILE"* ]]
    MTP_LAUNCHER_RELEASES=$address run dash "$RELEASES/1.0.0/install.sh"
    refused "The server's certificate is not one that this computer trusts."
    few
    instead wget 'exit 5' # as wget does then
    MTP_LAUNCHER_RELEASES=$address run env PATH="$BATS_TEST_TMPDIR/bin:$BATS_TEST_TMPDIR/few" \
        "$(command -v dash)" "$RELEASES/1.0.0/install.sh"
    refused "The server's certificate is not one that this computer trusts."
}

@test "an index with relative links is understood" {
    release=$RELEASES/1.0.0
    mkdir -p "$BATS_TEST_TMPDIR/net/simple/uv"
    cp "$release"/*.* "$BATS_TEST_TMPDIR/net/"
    mv "$BATS_TEST_TMPDIR"/net/uv-*.whl "$BATS_TEST_TMPDIR/net/simple/uv/"
    (cd "$BATS_TEST_TMPDIR/net/simple/uv" && printf '<a href="%s#sha256=0">a</a>\n' uv-*.whl >index.html)
    serve "$BATS_TEST_TMPDIR/net"
    MTP_LAUNCHER_RELEASES=$address UV_DEFAULT_INDEX=$address/simple run dash "$release/install.sh"
    [ "$status" -eq 0 ]
}

@test "without curl, wget uses the proxy" {
    few
    instead wget 'echo "proxy $https_proxy, not for $no_proxy"; exit 4'
    run env PATH="$BATS_TEST_TMPDIR/bin:$BATS_TEST_TMPDIR/few" HTTPS_PROXY=http://proxy.invalid:3128 NO_PROXY=here \
        MTP_LAUNCHER_RELEASES=https://releases.invalid "$(command -v dash)" "$RELEASES/1.0.0/install.sh"
    refused "proxy http://proxy.invalid:3128, not for here"
}

@test "the proxy resolves names that this computer cannot" {
    mkdir -p "$BATS_TEST_TMPDIR/net/http:"
    ln -s "$RELEASES/1.0.0" "$BATS_TEST_TMPDIR/net/http:/index.invalid"
    serve "$BATS_TEST_TMPDIR/net"
    http_proxy=$address UV_INDEX_URL=http://index.invalid/simple/ run dash "$RELEASES/1.0.0/install.sh"
    [ "$status" -eq 0 ]
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
}

@test "a release over a connection that others can change is refused" {
    for each in http://releases.example http://127.0.0.1@releases.example http://127.0.0.1.example:80/x \
        http://127.0.0.1:80@releases.example http://[::1].example ftp://127.0.0.1 releases.example; do
        MTP_LAUNCHER_RELEASES=$each run dash "$RELEASES/1.0.0/install.sh"
        refused "$each is not an address that a release may come from."
    done
    [ ! -e "$HOME/.local" ]
    for each in http://127.0.0.1:1 http://[::1]:1 https://127.0.0.1:1; do
        MTP_LAUNCHER_RELEASES=$each/a run dash "$RELEASES/1.0.0/install.sh"
        refused "manifest.json could not be fetched."
    done
}

@test "a missing network is reported" {
    MTP_LAUNCHER_RELEASES=http://127.0.0.1:1 run dash "$RELEASES/1.0.0/install.sh"
    refused "Is there a network?"
    cp "$RELEASES/1.0.0/install.sh" "$BATS_TEST_TMPDIR/"
    run dash "$BATS_TEST_TMPDIR/install.sh"
    refused "does not say where its releases are"
}
