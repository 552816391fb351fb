"""A layer explained: sources.py derives sources, parts.py collects all that is shown, page.py shows it."""
