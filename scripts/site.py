"""The site has the layout of the repository, so that a link between two files works on a forge and on the site.

A hook of mkdocs. The pages are README.md, CONTRIBUTING.md, CHANGELOG.md and docs/. Every other file or folder that one
of them links to becomes a page as well, which shows it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )(?!https?:)([^)#\s]+)(#[^)\s]+)?", re.MULTILINE)
"""A link within the repository: what stands before its path, the path, and the place in the file."""


def target(page: str, link: str) -> str | None:
    """The file or folder that a page links to, by its path in the repository; None if that is a page, or a picture."""
    path = (ROOT / page).parent.joinpath(link).resolve()
    if not path.exists() or path.suffix in {".md", ".png", ".svg"}:
        return None
    return path.relative_to(ROOT).as_posix()


def shown(name: str) -> str:
    """A page that shows a file, or what lies in a folder."""
    path = ROOT / name
    if path.is_dir():
        return f"# {name}/\n\n" + "\n".join(f"- `{file.name}`" for file in sorted(path.glob("*.*")))
    return f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````{path.suffix[1:]}\n{path.read_text()}\n````\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Put every file where it lies in the repository, and add what the pages link to."""
    from mkdocs.structure.files import File, InclusionLevel  # noqa: PLC0415 - only mkdocs needs it

    inside = Path(config.docs_dir)
    ours = [file for file in files if inside in Path(file.abs_src_path or "/").parents]
    for file in ours:
        files.remove(file)
    for name in [*PAGES, *(f"docs/{file.src_uri}" for file in ours)]:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    linked = {target(page, link) for page, text in pages.items() for _, link, _ in LINK.findall(text)}
    for name in sorted(filter(None, linked)):
        source = File.generated(config, f"{name}.md", content=shown(name), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(source)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Links to what is no page lead to the page that shows it."""
    here = page.file.src_uri
    return LINK.sub(lambda link: f"{link[1]}{link[2]}.md" if target(here, link[2]) else link[0], markdown)
