"""The speed table: ratios within one run, on one server, against baselines on the same tables and indexes."""
