"""What a request may ask, and the sentences that refuse it."""
