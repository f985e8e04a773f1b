# Installation of the Python packages by ./start, with small programs in place of python3 and uv.

setup() {
    ROOT=$BATS_TEST_DIRNAME/../..
    export FAKE_UV=$BATS_TEST_DIRNAME/fake_uv FAKE_LOG=$BATS_TEST_TMPDIR/log UV_CACHE_DIR=$BATS_TEST_TMPDIR/cache
    mkdir "$BATS_TEST_TMPDIR/bin" "$BATS_TEST_TMPDIR/checkout"
    cd "$BATS_TEST_TMPDIR/checkout"
    for each in scripts installer resources requirements.lock pyproject.toml hatch_build.py; do
        ln -s "$ROOT/$each" .
    done
    cp "$BATS_TEST_DIRNAME/fake_python" "$BATS_TEST_TMPDIR/bin/python3"
    chmod 755 "$BATS_TEST_TMPDIR/bin/python3"
    for each in sh cat cksum sed head env mkdir cp chmod; do # and no uv, whatever this computer has
        ln -s "$(command -v "$each")" "$BATS_TEST_TMPDIR/bin/"
    done
}

install_packages() {
    run env PATH="$BATS_TEST_TMPDIR/bin" sh -c '. scripts/bootstrap.sh; install_python requirements.lock'
    echo "$output"
    [ "$status" -eq 0 ]
}

# bats test_tags=essential
@test "uv from the package index installs the packages of the lock file by their hashes" {
    install_packages
    grep -q "^uv pip install .*--require-hashes --only-binary :all: -r requirements.lock" "$FAKE_LOG"
    grep -q "^uv pip install .*--editable" "$FAKE_LOG"
    [ "$(grep -c "^pip" "$FAKE_LOG")" -eq 0 ]
    grep -qx "uv==[0-9.]* --hash=sha256:[0-9a-f]\{64\}" .venv/uv.lock
}

@test "a uv on PATH is used" {
    cp "$FAKE_UV" "$BATS_TEST_TMPDIR/bin/uv"
    chmod 755 "$BATS_TEST_TMPDIR/bin/uv"
    install_packages
    grep -q "^uv pip install" "$FAKE_LOG"
    [ ! -e .venv/bin/uv ]
}

@test "uv uses the indexes of pip and no configuration of its own" {
    touch uv.toml
    FAKE_PIP_CONFIG="global.index-url='https://mirror.example/simple'" install_packages
    grep -qx "index https://mirror.example/simple" "$FAKE_LOG"
    [ "$(grep -c "^pip" "$FAKE_LOG")" -eq 0 ]
}

@test "pip installs by the same hashes if there is no uv" {
    FAKE_NO_UV=1 install_packages
    [ "$(grep -c "^uv" "$FAKE_LOG")" -eq 0 ]
    grep -q "^pip install .*--require-hashes --only-binary :all: -r requirements.lock" "$FAKE_LOG"
    grep -q "^pip install .*--editable" "$FAKE_LOG"
}

@test "pip installs by the same hashes if uv does not start" {
    FAKE_STARTS_NOT=1 install_packages
    grep -q "^pip install .*--require-hashes --only-binary :all: -r requirements.lock" "$FAKE_LOG"
}

@test "pip installs by the same hashes if uv fails" {
    FAKE_FULL=1 install_packages
    grep -q "^pip install .*--require-hashes --only-binary :all: -r requirements.lock" "$FAKE_LOG"
}

@test "installed packages are not installed again" {
    install_packages
    rm "$FAKE_LOG"
    install_packages
    [ ! -e "$FAKE_LOG" ]
}
