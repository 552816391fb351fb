"""Files: atomic writes, locks, downloads, and the layout of a run's folder."""
