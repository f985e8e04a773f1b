#!/bin/sh
# Functions that verify a release by its signed manifest. install.sh and inside.sh include them (installer/stamp.py),
# for each has to work without another file. What is verified: docs/updates.md.

# matches FILE SHA256
matches() { [ -f "$1" ] && [ -n "$2" ] && [ "$(sha256sum "$1" | cut -c 1-64)" = "$2" ]; }

# is_older VERSION OTHER
is_older() { [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# manifest_sum MANIFEST NAME: prints the SHA-256 of a file of the release
manifest_sum() {
    tr -d '\n' <"$1" | tr '{' '\n' | awk -v name="$2" '
        { sub(/^ +/, "") }
        index($0, "\"name\": \"" name "\",") == 1 && match($0, /"sha256": "[0-9a-f]+"/) {
            print substr($0, RSTART + length("\"sha256\": \""), 64)
        }'
}

# manifest_version MANIFEST
manifest_version() { tr -d '\n' <"$1" | tr '{' '\n' | sed -n 's/^ *"version": "\([0-9.]*\)".*/\1/p'; }

# verify_signature FILE KEY SCRATCH: returns 0 if FILE.minisig is KEY's signature of FILE, 1 if it is not, and 2 if this
# system has no program to verify it with. KEY is as minisign prints it, SCRATCH a folder for temporary files.
verify_signature() {
    printf %s "$2" | base64 -d >"$3/key" 2>/dev/null || return 1
    sed -n 2p "$1.minisig" | base64 -d >"$3/named" 2>/dev/null || return 1
    sed -n 4p "$1.minisig" | base64 -d >"$3/second" 2>/dev/null || return 1
    # The algorithm in two bytes, the key's name in eight, then the key of 32 bytes, or the signature of 64.
    [ "$(wc -c <"$3/key") $(wc -c <"$3/named") $(wc -c <"$3/second")" = "42 74 64" ] || return 1
    [ "$(head -c 2 "$3/key") $(head -c 2 "$3/named")" = "Ed ED" ] || return 1 # ED: over the file's BLAKE2b digest
    [ "$(tail -c +3 "$3/key" | head -c 8 | base64)" = "$(tail -c +3 "$3/named" | head -c 8 | base64)" ] || return 1
    tail -c 64 "$3/named" >"$3/first"
    {
        cat "$3/first"
        sed -n '3s/^trusted comment: //p' "$1.minisig" | tr -d '\r\n'
    } >"$3/comment"
    verdict=2
    if command -v openssl >/dev/null && openssl dgst -blake2b512 -binary "$1" >"$3/digest" 2>/dev/null; then
        { # a public key of Ed25519 as DER begins so
            printf '\060\052\060\005\006\003\053\145\160\003\041\000'
            tail -c 32 "$3/key"
        } >"$3/key.der"
        verdict=0
        openssl_verify "$3/digest" "$3/first" "$3/key.der" && openssl_verify "$3/comment" "$3/second" "$3/key.der" ||
            verdict=$?
    fi
    if [ $verdict = 2 ] && command -v minisign >/dev/null; then
        verdict=0
        minisign -V -q -P "$2" -m "$1" -x "$1.minisig" >/dev/null 2>&1 || verdict=1
    fi
    return $verdict
}

# openssl_verify MESSAGE SIGNATURE KEY: returns 2 if this openssl has no Ed25519, as before 3.0
openssl_verify() {
    output=$(openssl pkeyutl -verify -rawin -pubin -keyform DER -inkey "$3" -in "$1" -sigfile "$2" 2>/dev/null) &&
        return 0
    case $output in (*Failure*) return 1 ;; esac
    return 2
}
