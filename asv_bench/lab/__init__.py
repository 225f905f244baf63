"""What only this project's developers run."""
