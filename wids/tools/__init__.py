"""For people: the commands, pages in a browser, jobs predicted without data."""
