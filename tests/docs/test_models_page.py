"""docs/models.md says what is read, trained and written back: each row is made again."""

from docs import models


def test_page_is_up_to_date(peers):
    """If not: python -m docs.models."""
    assert models.page() == models.PAGE.read_text(encoding="utf-8")
