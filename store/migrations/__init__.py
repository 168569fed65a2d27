"""Alembic's folder: the revisions of the schema."""
