"""Columns of a dataset's samples: read once into a table, joined with others, asked by SQL. See README.md."""
