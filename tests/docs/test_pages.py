"""Every page has its place on the site, every option of a command is on a page, and what pages show of the command can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from statehouse.cli import cli
from tests.support import options
from tests.support.pages import FENCE

TOP = Path(__file__).parents[2]
PAGES = sorted((TOP / "docs").glob("*.md"))
SITE = yaml.safe_load((TOP / "mkdocs.yml").read_text())
GROUPS = ("Tutorial", "How-to", "Concepts", "Reference")
# What docs/site.py brings along.
MOVED = {"index.md", "changelog.md", "contributing.md", "bench.md", "bench-history.md", "bench-plan.md"}


def navigated(entry):
    """The pages of an entry of the nav."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry if isinstance(entry, list) else entry.values()) for page in navigated(part)]


def test_every_page_is_in_the_nav_once():
    found = navigated(SITE["nav"])
    assert sorted(page for page in found if page not in MOVED) == [page.name for page in PAGES]
    assert len(set(found)) == len(found)
    assert tuple(name for entry in SITE["nav"] for name in entry)[1:] == GROUPS


def test_the_site_asks_no_other_host():
    assert SITE["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "repo_url", "extra"} & set(SITE)


def test_every_option_of_every_command_is_on_its_page():
    made = options.page()
    assert (TOP / "docs/options.md").read_text() == made, "python -m tests.support.options > docs/options.md"
    for name, command in cli.commands.items():
        section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", made, re.MULTILINE | re.DOTALL)[1]
        assert [
            opt for option in command.params for opt in option.opts if f"`{opt}`" not in section and "-" in opt
        ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_of_the_command_can_be_typed(page):
    for _, body in FENCE.findall(page.read_text()):
        for line in body.splitlines():
            shown = re.match(r"(?:\$ |ExecStart=\S*/)?(?:[A-Z_]+=\S+ )*statehouse (?P<words>[a-z]+( .*)?)$", line)
            if shown is None or "…" in line or "COMMAND" in line:
                continue
            words = shlex.split(shown["words"], comments=True)
            words = words[: words.index("|")] if "|" in words else words
            if words[-1:] == ["&"] or "&" in words:
                words = words[: words.index("&")]
            assert words[0] in cli.commands, line
            known = {opt for parameter in cli.commands[words[0]].params for opt in parameter.opts} | {"--help"}
            assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, line
