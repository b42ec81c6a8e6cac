"""Eval datasets: cases are facts, datasets are frozen snapshots of them, runs are what replays found."""
