"""Other programs whose records become turns and cases."""
