"""What is where: shard lists, URLs, tar headers, member tables.

Rules: pure. Nothing here opens a file, a socket or a thread; bytes come in as arguments or through a
``read`` callable, and go out as return values.
"""
