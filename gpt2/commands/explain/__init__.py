"""A layer explained: its forward, its backward by hand, the derived one, and how the compiler got there.

    python -m gpt2 explain layernorm                    as text
    python -m gpt2 explain all --out layers.html        as a page that opens from disk

parts.py collects, text.py and page.py show. For a page, panels.py takes the sources apart and runs them on an
example; page.html, page.css and page.js are what all pages share. highlight.py colours Python and graphs.
"""
