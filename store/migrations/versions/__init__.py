"""One file a revision, named after it. A released revision never changes."""
