"""The speed table: every row a ratio within one run, on one server, against a baseline on the same tables and indexes."""
