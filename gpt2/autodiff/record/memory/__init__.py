"""Which recorded value owns memory, what is a view of it, and what an index or a write means for both."""
