# install.sh verifies the maintainer's signature of the release, with the programs that the system has

load releases

state() { (cd "$HOME" && find . -type f -exec sha256sum {} + && find . -type l -printf '%p %l\n') | sort; }

offer() { # VERSION: copies that release to $folder, where a test changes it
    folder=$BATS_TEST_TMPDIR/offered
    rm -rf "$folder"
    cp -r "$RELEASES/$1" "$folder"
}

is_refused() { # SENTENCE: checks that the offered release is refused with this sentence and changes nothing
    run dash "$RELEASES/1.1.0/install.sh" --offline "$folder"
    refused "$1"
    [ "$(state)" = "$before" ]
}

# bats test_tags=essential
@test "a release without the maintainer's signature is refused, and nothing changes" {
    install 1.0.0
    before=$(state)
    unsigned="manifest.json is not signed by this program's maintainer"
    offer 1.1.0
    sed -i 's/"notes": "/&Changed. /' "$folder/manifest.json"
    is_refused "$unsigned"
    offer 1.1.0
    sed -i '3s/$/, changed/' "$folder/manifest.json.minisig"
    is_refused "$unsigned"
    offer 1.1.0
    head -c 150 "$RELEASES/1.1.0/manifest.json.minisig" >"$folder/manifest.json.minisig"
    is_refused "$unsigned"
    : >"$folder/manifest.json.minisig"
    is_refused "$unsigned"
    rm "$folder/manifest.json.minisig"
    is_refused "holds no manifest.json.minisig"
    offer 1.1.0
    minisign -G -W -p "$BATS_TEST_TMPDIR/other.pub" -s "$BATS_TEST_TMPDIR/other" >/dev/null
    (cd "$folder" && sign 1.1.0 "$BATS_TEST_TMPDIR/other")
    is_refused "$unsigned"
    [ "$("$command" --version)" = "mtp-launcher 1.0.0" ]
}

# bats test_tags=essential
@test "an old release that is offered again is refused" {
    install 1.1.0
    before=$(state)
    install 1.0.0
    refused "MTP Launcher 1.1.0 is installed, and this is 1.0.0, which is older."
    [ "$(state)" = "$before" ]
    rm "$program"/1.1.0-*/tools/mtp-launcher/bin/mtp-launcher # so that it would be installed again
    before=$(state)
    offer 1.0.0
    is_refused "$folder holds version 1.0.0, and this install.sh is of 1.1.0."
    dash "$program/install.sh" --uninstall
    install 1.0.0
    [ "$status" -eq 0 ]
}

@test "a signed release with other files is refused" {
    install 1.0.0
    before=$(state)
    offer 1.1.0
    echo "another" >>"$folder/mtp_launcher-1.1.0-py3-none-any.whl"
    (cd "$folder" && sign 1.1.0)
    is_refused "has other files than this install.sh expects"
}

@test "an install.sh that was changed is not kept" {
    offer 1.0.0
    echo "# changed" >>"$folder/install.sh"
    run dash "$folder/install.sh" --offline "$folder"
    refused "$folder/install.sh is not the one of the release that was signed."
    [ "$(ls "$program")" = lock ]
    run dash "$folder/install.sh" --offline "$RELEASES/1.0.0"
    [ "$status" -eq 0 ]
    cmp "$program/install.sh" "$RELEASES/1.0.0/install.sh"
    echo "# changed" >>"$program/install.sh"
    install 1.0.0
    [[ "$output" == *"installed already"* ]]
    cmp "$program/install.sh" "$RELEASES/1.0.0/install.sh"
}

# with_few: runs install.sh of 1.1.0 with the programs of `few` and no others
with_few() {
    run env PATH="$BATS_TEST_TMPDIR/bin:$BATS_TEST_TMPDIR/few" \
        "$(command -v dash)" "$RELEASES/1.1.0/install.sh" --offline "$folder"
}

@test "without openssl minisign verifies, without both the hash-checked packages do" {
    few sh mv ln chmod touch rmdir minisign
    ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$BATS_TEST_TMPDIR/few/python3"
    FAKE_PACKAGES=$(python3 -c 'import os, cryptography; print(os.path.dirname(os.path.dirname(cryptography.__file__)))')
    export FAKE_PACKAGES
    for each in minisign packages; do
        offer 1.1.0
        with_few
        echo "$output"
        [ "$status" -eq 0 ]
        dash "$program/install.sh" --uninstall
        sed -i 's/"notes": "/&Changed. /' "$folder/manifest.json"
        with_few
        refused "manifest.json is not signed by this program's maintainer"
        [ ! -e "$command" ]
        offer 1.0.0
        with_few
        [ "$status" -eq 1 ]
        [ ! -e "$command" ]
        rm -f "$BATS_TEST_TMPDIR/few/minisign"
        instead openssl 'echo "Invalid command" >&2; exit 1' # as before 3.0
    done
    [ "$(grep -c "uv tool install" "$FAKE_LOG")" -eq 2 ]
}

@test "without a key nothing is installed, and another may be named" {
    offer 1.0.0
    sed -i 's/^release_key=.*/release_key=/' "$folder/install.sh"
    (cd "$folder" && sign 1.0.0)
    run dash "$folder/install.sh" --offline "$folder"
    refused "This build has no key to verify releases with."
    MTP_LAUNCHER_RELEASE_KEY=$(tail -n 1 "$RELEASES/key.pub") run dash "$folder/install.sh" --offline "$folder"
    [ "$status" -eq 0 ]
    MTP_LAUNCHER_RELEASE_KEY=nonsense run dash "$RELEASES/1.1.0/install.sh" --offline "$RELEASES/1.1.0"
    refused "manifest.json is not signed by this program's maintainer"
}
