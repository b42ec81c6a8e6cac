"""What the review bot is made of: diffs, rules, the local forge, and the offline reviewer."""
