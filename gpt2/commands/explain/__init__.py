"""A layer explained: its forward, its backward by hand, the derived one, and how the compiler got there.

    python -m gpt2 explain layernorm                    as text
    python -m gpt2 explain all --out layers.html        as a page that opens from disk

sources.py finds and derives sources, parts.py collects all parts, text.py and page.py show them. The page
itself is that of ad.explain, in gpt2/autodiff/show.
"""
