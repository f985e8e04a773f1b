"""The page of the tour in pictures."""

import re
from pathlib import Path

from tools.screenshots.gallery import Picture, write_gallery


def test_the_pictures_are_listed_by_page_and_state_without_other_files(tmp_path: Path) -> None:
    pictures = [
        Picture("tune", "with a verdict", "dark", "zh_CN", "1000x640"),
        Picture("tune", "loading", "light", "en", "2560x1440"),
        Picture("start", "with plans", "light", "en", "1440x900"),
    ]
    for each in pictures:
        (tmp_path / each.file_name).touch()
    (tmp_path / "start-light.png").touch()  # a picture that is not of the tour
    assert write_gallery(tmp_path) == len(pictures)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<img src="([^"]+)"', page) == [each.file_name for each in reversed(pictures)]
    assert re.findall(r"<h2 id=\"(\w+)\"", page) == ["start", "tune"]
    assert "http" not in page
    assert 'data-theme="dark" data-language="zh_CN" data-size="1000x640"' in page
