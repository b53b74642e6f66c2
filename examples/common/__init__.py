"""What the demos of the examples share. They are plain scripts, and put this package's folder on their path."""
