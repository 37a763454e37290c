"""Papermill's command line, for forks of a process that has imported it."""

from papermill.cli import papermill

if __name__ == "__main__":
    papermill()
