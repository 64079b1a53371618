"""Draws the places of a message in docs/ARCHITECTURE.md from the table in core/tracks/places.py.

python tools/make_places.py            write the picture
python tools/make_places.py --check    say whether it is current
"""

import sys
from pathlib import Path

from forebay.core.tracks.places import MOVES, NEW

PAGE = Path(__file__).parent.parent / "docs" / "ARCHITECTURE.md"
BEGIN, END = "<!-- places: begin -->", "<!-- places: end -->"


def picture() -> str:
    """Return the table of moves as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    for (source, target), verbs in MOVES.items():
        begin = "[*]" if source == NEW else source
        lines.append(f"    {begin} --> {target}: {', '.join(verbs)}")
    return "\n".join([*lines, "```"])


def with_picture(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{picture()}\n\n{END}{after}"


def main() -> int:
    page = PAGE.read_text()
    made = with_picture(page)
    if "--check" in sys.argv:
        if made != page:
            sys.stderr.write("docs/ARCHITECTURE.md does not show the moves as they are: run 'make picture'\n")
        return int(made != page)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
