"""everyturn: every turn an agent takes is a row you can query."""
