"""The rooms that a training loop runs through. Private: they may change in any release; README.md names them."""
