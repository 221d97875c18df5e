"""The evaluation's HTML page: what it escapes, shortens, counts; and, where a browser is here, what a reader sees."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from eval.page import LONGEST, Instance, Section, shortened, write_page

EVIL = "</pre><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;\ud800"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def evil_page(path: Path) -> Path:
    parts = [Section(EVIL, EVIL, "action", link='logs/a"b <c>.txt')]
    sections = [Section("patch", f"@@ 1\n+{EVIL}\n-x", "diff"), Section("trajectory", parts=parts)]
    instances = (
        Instance(f"{EVIL}-{number}", verdict, tone, {EVIL: EVIL}, [EVIL] * (number == 1), sections)
        for number, (verdict, tone) in enumerate([("resolved", "good"), ("unresolved", "bad"), ("resolved", "good")])
    )
    return write_page(path, f"run {EVIL}", {"resolved": EVIL}, instances)


def test_nothing_a_model_or_a_log_says_becomes_markup(tmp_path: Path) -> None:
    page = Tags()
    page.feed(evil_page(tmp_path / "page.html").read_text())
    assert [tag for tag, _ in page.tags].count("script") == 1  # ours
    assert not any(tag == "img" or any(name.startswith("on") for name in attrs) for tag, attrs in page.tags)
    assert not any(attrs.get("src") for _, attrs in page.tags)
    assert [a["href"] for tag, a in page.tags if tag == "a"] == ["logs/a%22b%20%3Cc%3E.txt"] * 3
    assert "".join(page.text).count("document.title='owned'") >= 3 * 2


@pytest.mark.parametrize("length", [0, LONGEST - 1, LONGEST, LONGEST + 1, 10 * LONGEST])
def test_long_texts_keep_both_ends_and_say_what_is_missing(length: int) -> None:
    text = "".join(chr(97 + at % 26) for at in range(length))
    shown = shortened(text, LONGEST)
    if length <= LONGEST:
        assert shown == text
    else:
        assert shown.startswith(text[: LONGEST // 2])
        assert shown.endswith(text[-LONGEST // 2 :])
        assert f"{length - LONGEST:,} characters are not shown" in shown


def test_a_failure_leaves_the_old_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def broken():
        yield Instance("a", "resolved")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_page(path, "t", {}, broken())
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_a_real_browser_shows_it(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("PAGE NOT SEEN IN A BROWSER: no chromium on this machine")
    page = evil_page(tmp_path / "page.html")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    command += ["--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    tags = Tags()
    tags.feed(seen)
    assert '<span id="count" class="dim">3 of 3</span>' in seen  # the script ran and found every instance
    assert "<title>run " in seen  # nobody else's script did
    buttons = [attrs["data-kind"] for tag, attrs in tags.tags if tag == "button"]
    assert buttons == ["", "resolved", "unresolved", "flagged"]
