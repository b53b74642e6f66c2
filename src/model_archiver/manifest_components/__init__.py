"""Parts of the manifest."""
