"""The report, from files to a page in a browser."""
