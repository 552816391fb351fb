"""What the built site refers to and does not have: `python -m docs.links site`. mkdocs reads Markdown alone.

Exit status 1, and a line for each, where a page, a picture or a style sheet is missing.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ELSEWHERE = re.compile(r"https?:|mailto:|data:|javascript:|/")


def missing(site: Path) -> list[str]:
    """PAGE: ADDRESS of each relative address in the site's pages at which there is nothing."""
    found = set()
    for page in site.rglob("*.html"):
        for address in re.findall(r'(?:href|src|srcset)="([^"#?]+)[^"]*"', page.read_text(encoding="utf-8")):
            if not ELSEWHERE.match(address) and not (page.parent / address).exists():
                found.add(f"{page.relative_to(site)}: {address}")
    return sorted(found)


def main(arguments: list[str]) -> int:
    site = Path(arguments[0] if arguments else "site")
    if not (site / "index.html").exists():
        print(f"{site}: no site; mkdocs build --strict makes one", file=sys.stderr)
        return 2
    found = missing(site)
    print("\n".join(found) if found else f"{site}: nothing is missing")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
