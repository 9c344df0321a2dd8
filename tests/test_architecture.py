"""docs/architecture.md tells the truth about the tree."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
MAP: Final = re.compile(r"<!-- map: .*? -->\n(.*?)<!-- end of map -->", re.DOTALL)
LINE: Final = re.compile(r"^ {4}( *)([a-z]+)/ ", re.MULTILINE)
# Their folders are on the map, one level or two deep; other trees are named as a whole.
MAPPED: Final = ("app", "app/api", "app/http", "app/redis", "engine", "sdk")
WHOLE: Final = ("bench", "deploy", "docs", "spark", "tests")


def _on_the_map() -> set[str]:
    found = MAP.search((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert found is not None, "the page has a map"
    paths: set[str] = set()
    parents: list[str] = []
    for indent, name in LINE.findall(found[1]):
        depth = len(indent) // 2
        parents[depth:] = [name]
        paths.add("/".join(parents))
    return paths


def _in_the_tree() -> set[str]:
    inner = {
        str(folder.relative_to(ROOT))
        for parent in MAPPED
        for folder in (ROOT / parent).iterdir()
        if folder.is_dir() and not folder.name.startswith((".", "_"))
    }
    return {*inner, *WHOLE, "app", "engine", "sdk"}


def test_the_map_is_the_tree() -> None:
    """No folder is missing on it, and none is on it that is gone."""
    assert _on_the_map() == _in_the_tree()


def test_packages_of_the_gateway_hold_few_modules() -> None:
    """More than sixteen are not taken in at a glance; fewer than four need no folder."""
    folders = {file.parent for file in (ROOT / "app").rglob("__init__.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert len(counts) > 10
    assert {name: count for name, count in counts.items() if not 4 <= count <= 16} == {}


def test_every_file_that_the_page_names_exists() -> None:
    """A newcomer follows them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:app|engine|tests|sdk|spark)/[a-z_/]+\.py)`", text))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_documents_cite_files_that_exist() -> None:
    """Links of README, guides and contributing notes lead somewhere."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert missing == []
