"""Decode the bytes of a sample's members into values, and encode values, by extension."""
