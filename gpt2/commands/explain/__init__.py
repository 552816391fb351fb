"""A layer explained: its forward, its backward by hand, the derived one, and how the compiler got there.

    python -m gpt2 explain layernorm                    as text
    python -m gpt2 explain all --out layers.html        as a page that opens from disk

parts.py collects, text.py and page.py show, highlight.py colours Python and graphs for any page of HTML.
"""
