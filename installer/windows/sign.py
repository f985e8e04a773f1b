"""Signs one Windows program in place. NSIS calls this script for the uninstaller and for the setup program (see
build.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path


def main(program: Path) -> int:
    """Sign with the certificate of the environment; return osslsigncode's exit code."""
    certificate, password_file, timestamp = json.loads(os.environ["SIGN_WITH"])
    signed = program.with_name(program.name + ".signed")
    command = ["osslsigncode", "sign", "-h", "sha256", "-n", "MTP Launcher", "-pkcs12", certificate]
    if password_file:
        command += ["-readpass", password_file]
    command += ["-ts", timestamp] if timestamp else ["-time", os.environ["SOURCE_DATE_EPOCH"]]
    ended = subprocess.run([*command, "-in", str(program), "-out", str(signed)], stdout=subprocess.DEVNULL, check=False)
    if ended.returncode == 0:
        signed.replace(program)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
