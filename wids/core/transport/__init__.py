"""Bytes of a URL: file systems, HTTP, downloads, byte ranges, retries, uploads."""
