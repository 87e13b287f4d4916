"""Hooks of mkdocs: pages from outside of ``docs/``, and links that lead somewhere on the site, too.

README.md is the first page; CHANGELOG.md, CONTRIBUTING.md and the pages of ``bench/`` come along. A link to a file that is on no page,
such as a test, is left as its text. The build fails where a page would ask another host for something.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "bench.md",
    "bench/history.md": "bench-history.md",
    "bench/plan.md": "bench-plan.md",
}
LINK = re.compile(r"(?<=\])\(([^)\s:#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|link rel=\"?(?:stylesheet|preload|preconnect))[^>]*?(?:src|href)=\"?(https?:)?//"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as GitHub makes them, for which the pages' links are written."""
    config.mdx_configs["toc"]["slugify"] = lambda text, _: re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for source, name in MOVED.items():
        files.append(File.generated(config, name, content=(TOP / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's links, as the site has their pages."""
    name = page.file.src_uri
    source = next((source for source, moved in MOVED.items() if moved == name), f"docs/{name}")
    known = {file.src_uri for file in files}

    def moved(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if not path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = MOVED.get(target, target.removeprefix("docs/"))
        return f"({target}{anchor})" if target in known else "()"

    parts, end = [], 0
    for code in CODE.finditer(markdown):  # what is code stays as it is
        parts += [LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    text = "".join([*parts, LINK.sub(moved, markdown[end:])])
    return re.sub(r"(?<!!)\[([^\]\[]+)\]\(\)", r"\1", text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The page as it is, if it asks no other host."""
    if found := FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri}: found {found[0]!r}, expected nothing from another host")
    return output
