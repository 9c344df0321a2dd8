"""docs/architecture.md tells the truth about the tree."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent


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
