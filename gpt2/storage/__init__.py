"""Files on the disk: written whole or not at all, locked, downloaded, and what lies in a run's folder."""
