"""What a request may say, and the sentences that refuse it."""
