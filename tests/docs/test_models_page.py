"""docs/models.md says what is read, trained and written back: each row is made again."""

import pytest


def test_page_is_up_to_date(peers):
    """If not: python -m docs.models."""
    pytest.importorskip("peft")
    from docs import models

    assert models.page() == models.PAGE.read_text(encoding="utf-8")
