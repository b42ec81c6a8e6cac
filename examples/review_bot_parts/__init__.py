"""What the review bot is made of: diffs, rules, the offline reviewer, and the forges: one on disk, and GitHub."""
