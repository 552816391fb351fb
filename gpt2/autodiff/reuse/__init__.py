"""Whether a recording may be reused: what it depended on, and whether that is still the same."""
