"""Columns of a dataset's samples: read once into a table, joined with other tables, queried by SQL. See README.md."""
