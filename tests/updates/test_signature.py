"""Files that the maintainer has signed are used, all others are refused."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.updates.check import ReleaseReplayed, ReleasesUnknown, check_for_update
from launcher.updates.signature import (
    RELEASE_KEY_VARIABLE,
    PublicKey,
    SignatureWrong,
    UnknownSigner,
    verify_signature,
)
from tests.updates.published import Release
from tests.updates.signing import Maintainer

OURS, NEXT, STRANGER = Maintainer(), Maintainer(2), Maintainer(3)
KEYS = (PublicKey.from_text(OURS.public_key),)


def statement(number: int, *keys: Maintainer) -> bytes:
    return json.dumps({"number": number, "keys": [each.public_key for each in keys]}).encode()


def test_signatures_are_compatible_with_minisign(tmp_path: Path) -> None:
    minisign = shutil.which("minisign")
    assert minisign, "it is among the programs that ./test installs"
    file, public = tmp_path / "manifest.json", tmp_path / "minisign.pub"
    file.write_bytes(b"what is published")
    generate = [minisign, "-G", "-W", "-p", public, "-s", tmp_path / "minisign.key"]
    subprocess.run(generate, check=True, capture_output=True, timeout=60)
    sign = [minisign, "-S", "-s", tmp_path / "minisign.key", "-m", file, "-t", "version 1.0"]
    subprocess.run(sign, check=True, capture_output=True, timeout=60)
    signature = (tmp_path / "manifest.json.minisig").read_text("utf-8")
    keys = (PublicKey.from_text(public.read_text("utf-8")),)
    assert verify_signature(file.read_bytes(), signature, keys) == "version 1.0"

    (tmp_path / "manifest.json.minisig").write_text(OURS.sign(file.read_bytes()), "utf-8")
    verify = [minisign, "-V", "-P", OURS.public_key, "-m", file]
    subprocess.run(verify, check=True, capture_output=True, timeout=60)


def test_other_content_keys_and_changed_signatures_are_refused() -> None:
    good = OURS.sign(b"content", "version 1.0")
    assert verify_signature(b"content", good, KEYS) == "version 1.0"
    with pytest.raises(SignatureWrong):
        verify_signature(b"contents", good, KEYS)
    with pytest.raises(UnknownSigner):
        verify_signature(b"content", STRANGER.sign(b"content"), KEYS)
    first, line, comment, last = good.splitlines()
    wrong = [
        "",
        "\n\n\n",
        first,
        f"{first}\n{line}\n",
        f"{first}\n{line[:-8]}\n{comment}\n{last}\n",
        f"{first}\n{line}\n{comment} and more\n{last}\n",
        f"{first}\n{line}\n{comment}\n{last[:-8]}\n",
        f"{first}\n{line}\nuntrusted comment: version 1.0\n{last}\n",
        # RWQ: as if the file itself had been signed, not its hash.
        f"{first}\n{line.replace('RUQ', 'RWQ', 1)}\n{comment}\n{last}\n",
        f"{first}\n{'é' * 99}\n{comment}\n{last}\n",
    ]
    for signature in wrong:
        with pytest.raises(SignatureWrong):
            verify_signature(b"content", signature, KEYS)


@pytest.mark.parametrize("text", ["", "RWQ", "not base64 at all", Maintainer().public_key[:-4]])
def test_an_invalid_key_is_refused(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        PublicKey.from_text(text)


async def test_a_changed_or_unsigned_manifest_is_never_used(release: Release, home: Path) -> None:
    manifest = release.server.folder / "manifest.json"
    signature = release.server.folder / "manifest.json.minisig"
    good = manifest.read_bytes()
    manifest.write_bytes(good.replace(b"7.0.0", b"7.0.1"))
    with pytest.raises(SignatureWrong, match="not signed by this program's maintainer"):
        await check_for_update()
    release.put_signed(manifest.name, good, STRANGER)
    with pytest.raises(SignatureWrong):
        await check_for_update()
    signature.unlink()
    with pytest.raises(SignatureWrong):
        await check_for_update()
    release.put_signed(manifest.name, good, release.maintainer)
    assert (await check_for_update()).is_newer


async def test_an_older_signed_release_than_known_is_refused(release: Release) -> None:
    await check_for_update()
    release.publish("6.9.0")
    with pytest.raises(ReleaseReplayed, match=r"offers version 6\.9\.0, though version 7\.0\.0 is known"):
        await check_for_update()
    release.publish("7.0.1")
    assert (await check_for_update()).manifest.version == "7.0.1"


async def test_a_key_is_replaced_if_the_former_one_signed_it(release: Release) -> None:
    manifest = release.server.folder / "manifest.json"
    release.put_signed(manifest.name, manifest.read_bytes(), NEXT)
    with pytest.raises(UnknownSigner):
        await check_for_update()
    release.put_signed("release-keys.json", statement(1, NEXT), STRANGER)
    with pytest.raises(SignatureWrong):
        await check_for_update()
    release.put_signed("release-keys.json", statement(1, NEXT), OURS)
    assert (await check_for_update()).is_newer

    release.put_signed(manifest.name, manifest.read_bytes(), OURS)  # signed with a key that no longer counts
    with pytest.raises(SignatureWrong):
        await check_for_update()
    release.put_signed("release-keys.json", statement(1, OURS), NEXT)  # a statement that is not newer
    with pytest.raises(SignatureWrong):
        await check_for_update()
    release.put_signed("release-keys.json", statement(2, NEXT, OURS), NEXT)
    assert (await check_for_update()).is_newer
    for name in ("release-keys.json", "release-keys.json.minisig"):
        (release.server.folder / name).unlink()


async def test_another_key_of_the_program_invalidates_stored_keys(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = release.server.folder / "manifest.json"
    release.put_signed("release-keys.json", statement(1, NEXT), OURS)
    release.put_signed(manifest.name, manifest.read_bytes(), NEXT)
    await check_for_update()
    monkeypatch.setenv(RELEASE_KEY_VARIABLE, STRANGER.public_key)
    with pytest.raises(SignatureWrong):
        await check_for_update()
    release.put_signed(manifest.name, manifest.read_bytes(), STRANGER)
    assert (await check_for_update()).is_newer
    for name in ("release-keys.json", "release-keys.json.minisig"):
        (release.server.folder / name).unlink()


async def test_a_build_without_a_key_checks_nothing(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.updates.signature.RELEASE_KEY", "")
    monkeypatch.delenv(RELEASE_KEY_VARIABLE)
    with pytest.raises(ReleasesUnknown, match="no key to verify releases"):
        await check_for_update()
    assert release.record.requests == []
