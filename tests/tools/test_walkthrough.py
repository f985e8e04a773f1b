"""The walkthrough names the places that the README names."""

import re
from pathlib import Path

from tools.walkthrough import DOCS, STATE

README = Path(__file__).parents[2] / "README.md"


def test_its_log_lies_in_the_state_folder_of_the_readme() -> None:
    assert f"`{STATE}`" in README.read_text("utf-8")
    logs = re.findall(r"log +(\S+)/logs/engine-8123\.log", DOCS.read_text("utf-8"))
    assert set(logs) == {STATE}
