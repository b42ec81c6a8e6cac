"""Claude Code: its hooks, its slash commands, and its transcripts as turns.

A hook only notes on a spool that a transcript has grown; transcripts are read when `everyturn claude-code import` or
`capture` asks for them, from where the last reading ended.
"""
