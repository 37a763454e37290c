"""What a training loop runs through. Private: everything below may change in any release; README.md names the rooms."""
